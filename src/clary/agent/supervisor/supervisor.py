"""The agent's main object: keeps in touch with the service and gives one host of one attempt its life.

Where: `python -m clary.agent` runs one. One thread, that of `run`, changes state. All others (heartbeat, orders, log
shipper, preparation, program watch, upload) put what they have to say into the mailbox, as a function that this thread
calls.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clary.agent.fact_board import FactBoard
from clary.agent.log.host_log import HostLog
from clary.agent.service_client import AttemptOver, BackOff, ServiceRefused, ServiceUnreachable
from clary.agent.supervisor.agent_log import close_agent_log, open_agent_log
from clary.agent.supervisor.failures import failure_of
from clary.agent.supervisor.host_life import BEFORE_EXIT, HostLife
from clary.agent.supervisor.service_watch import ORPHAN_TIMEOUT_S, Heartbeat, OrderWatch
from clary.agent.supervisor.steps import MakeSteps
from clary.agent.supervisor.surroundings import Service, Surroundings
from clary.base.clock import Clock, SystemClock
from clary.contract.agent_protocol import (
    HEARTBEAT_INTERVAL_S,
    IS_LAST,
    HostPhase,
    Order,
    OrderKind,
    ReportReceipt,
)
from clary.contract.launch_plan import LaunchPlan

SPOOL_FOLDER = "log-spool"  # below the host's folder
EXIT_RELEASED = 0  # also when the service said that the attempt is over
EXIT_FAILED = 1  # no assignment, or a defect of the agent
EXIT_TERMINATED = 143  # SIGTERM, as a shell would say

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits of the supervisor's waits; tests shorten these."""

    heartbeat_s: float = HEARTBEAT_INTERVAL_S
    assignment_s: float = 300.0  # for the service to hand out the plan; nothing runs yet that would be lost
    orphan_s: float = ORPHAN_TIMEOUT_S  # without the service, before the program is killed
    terminated_grace_s: float = 5.0  # from SIGTERM to the agent to SIGKILL of the program
    drain_s: float = 60.0  # without progress of log lines while the service answers
    last_report_s: float = 2.0
    join_s: float = 6.0  # longer than a request in flight lasts


class Supervisor:
    """Runs one host; `run` returns the agent's exit code.

    Args:
        service: where to report and to ask for orders.
        host: name of this host, `algo-1`.
        make_steps: builds the work of this host from the plan.
        clock: time for records.
        limits: how long to wait for what.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str,
        make_steps: MakeSteps,
        clock: Clock | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._service = service
        self._host = host
        self._make_steps = make_steps
        self._clock = clock if clock is not None else SystemClock()
        self._limits = limits if limits is not None else Limits()
        self._mailbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._board = FactBoard(clock=self._clock)
        self._orders = OrderWatch(service, on_order=self._pass_on_order, on_over=self._pass_on_over)
        self._heartbeat = Heartbeat(
            service,
            board=self._board,
            on_over=self._pass_on_over,
            on_receipt=self._pass_on_receipt,
            on_away=self._pass_on_away,
            interval_s=self._limits.heartbeat_s,
            orphan_timeout_s=self._limits.orphan_s,
        )
        self._life: HostLife | None = None
        self._log: HostLog | None = None
        self._log_handler: logging.Handler | None = None
        self._exit_code: int | None = None  # set when it is time to leave
        self._terminated_at_s: float | None = None  # when SIGTERM came
        self._is_over = False  # the service wants nothing of this attempt any more
        self.is_last = False  # told to leave the host's pool with the attempt

    def terminate(self) -> None:
        """Stop the program with a short grace and leave. Safe in a signal handler."""
        self._terminated_at_s = time.monotonic()
        self._mailbox.put(self._on_terminated)

    def run(self) -> int:
        """Live through the attempt and return the exit code of the agent; nothing is left behind afterwards."""
        self._heartbeat.start()
        try:
            plan = self._fetch_assignment()
            if plan is not None:
                self._life = self._begin_life(plan)
                self._orders.start()
                self._life.start()
                self._work_through_mailbox(self._life)
        except Exception as error:  # boundary: agent supervisor
            logger.exception("the agent has failed before it could do anything")
            self._board.enter(HostPhase.EXITED, failure=failure_of(error))
            self._exit_code = EXIT_FAILED
        finally:
            self._leave()
        return EXIT_FAILED if self._exit_code is None else self._exit_code

    def _fetch_assignment(self) -> LaunchPlan | None:
        """Ask for the plan until it comes; None when there is no use in asking."""
        deadline_s = time.monotonic() + self._limits.assignment_s
        back_off = BackOff()
        while self._terminated_at_s is None and not self._is_over:
            try:
                return self._service.fetch_assignment()
            except (AttemptOver, ServiceRefused) as error:
                logger.error("no assignment: %s", error)
                self._is_over = isinstance(error, AttemptOver)
                self._exit_code = EXIT_RELEASED if self._is_over else EXIT_FAILED
                return None
            except ServiceUnreachable as error:
                if time.monotonic() > deadline_s:
                    logger.error("no assignment within %g s: %s", self._limits.assignment_s, error)
                    self._exit_code = EXIT_FAILED
                    return None
                time.sleep(back_off.next_s())
        self._exit_code = EXIT_TERMINATED if self._terminated_at_s is not None else EXIT_RELEASED
        return None

    def _begin_life(self, plan: LaunchPlan) -> HostLife:
        folder = Path(plan.work_folder) / self._host
        self._log_handler = open_agent_log(folder)
        self._log = HostLog(
            self._service,
            plan=plan,
            folder=folder / SPOOL_FOLDER,
            clock=self._clock,
            on_over=self._pass_on_over,
            on_note=self._board.add_note,
        )
        around = Surroundings(
            board=self._board,
            log=self._log,
            steps=self._make_steps(plan, self._host),
            post=self._mailbox.put,
            is_vain=self._is_vain,
            drain_s=self._limits.drain_s,
            service=self._service,
            clock=self._clock,
        )
        return HostLife(plan, host=self._host, around=around)

    def _work_through_mailbox(self, life: HostLife) -> None:
        while self._exit_code is None:
            due_at_s = life.due_at_s()
            act: Callable[[], None]
            try:
                act = self._mailbox.get(timeout=None if due_at_s is None else max(0.0, due_at_s - time.monotonic()))
            except queue.Empty:
                act = life.act_if_due
            try:
                act()
            except Exception as error:  # boundary: agent supervisor; the host ends, and says why
                logger.exception("unexpected error in phase %s", self._board.phase)
                if not life.end_after_defect(error):
                    self._exit_code = EXIT_FAILED
            if self._terminated_at_s is not None and self._board.phase not in BEFORE_EXIT and self._exit_code is None:
                self._exit_code = EXIT_TERMINATED

    def _leave(self) -> None:
        """Kill running processes, say good-bye to the service, stop every thread."""
        life, log = self._life, self._log
        if life is not None:
            life.end_everything()
        if not self._is_over:
            if self._exit_code == EXIT_RELEASED:
                self._board.enter(HostPhase.RELEASED)
            self._board.wait_until_told(self._limits.last_report_s)
        self._service.break_off()
        stopped = [self._heartbeat.close(self._limits.join_s), self._orders.close(self._limits.join_s)]
        if life is not None:
            stopped.append(life.close())
        if log is not None:
            stopped.append(log.close(self._limits.join_s))
        if all(stopped):
            self._service.close()
        else:
            logger.error("a thread did not end in time; it ends with the process")
            self._exit_code = EXIT_FAILED  # so that the process does end, and no other attempt runs beside the thread
        if self._log_handler is not None:
            close_agent_log(self._log_handler)

    def _is_vain(self) -> bool:
        """Whether there is no use in waiting for the service."""
        if self._terminated_at_s is None:
            return self._is_over
        return time.monotonic() - self._terminated_at_s > self._limits.terminated_grace_s + self._limits.last_report_s

    def _pass_on_order(self, order: Order) -> None:
        self._mailbox.put(lambda: self._on_order(order))

    def _pass_on_receipt(self, receipt: ReportReceipt) -> None:
        self._orders.expect(receipt.order_number)
        if self._life is None:  # the next receipt asks again
            return
        if receipt.dump_number:
            self._life.companions.dumps.ask(receipt.dump_number, receipt.dump_reason)
        if receipt.profile is not None:
            self._life.companions.profiles.ask(receipt.profile)
        if receipt.metrics_interval_s:
            self._life.companions.metrics.measure_every(receipt.metrics_interval_s)

    def _pass_on_away(self, is_away: bool) -> None:
        if self._life is not None:
            self._life.companions.training.take_note_of_service(is_away=is_away)

    def _pass_on_over(self, reason: str) -> None:
        self._is_over = True
        self._mailbox.put(lambda: self._on_over(reason))

    def _on_order(self, order: Order) -> None:
        assert self._life is not None
        logger.info("order %d: %s %s", order.number, order.kind, order.reason)
        self._board.take_up(order.number)
        if order.kind is OrderKind.RELEASE:
            self.is_last = bool(order.arguments.get(IS_LAST))
            self._exit_code = EXIT_RELEASED
        else:
            self._life.obey(order)

    def _on_over(self, reason: str) -> None:
        logger.warning("leaving: %s", reason)
        self._exit_code = EXIT_RELEASED

    def _on_terminated(self) -> None:
        assert self._life is not None
        logger.warning("SIGTERM: stopping and leaving")
        self._life.stop(self._limits.terminated_grace_s, reason="the agent was told to end")
