"""The agent's main object: keeps in touch with the service and runs one host of one attempt.

Where: `python -m clary.agent` runs one for each attempt. Only the thread of `run` changes the host's phase. All other
threads (heartbeat, orders, log shipper, preparation, program watch, upload) put functions into the mailbox, which this
thread calls; the heartbeat's thread passes requests in receipts directly to the companions.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from clary.agent.fact_board import FactBoard
from clary.agent.log.host_log import HostLog
from clary.agent.service_client import AttemptOver, BackOff, ServiceRefused, ServiceUnreachable
from clary.agent.supervisor.agent_log import close_agent_log, open_agent_log
from clary.agent.supervisor.failures import failure_of
from clary.agent.supervisor.host_life import BEFORE_EXIT, HostLife
from clary.agent.supervisor.notice_period import AFTER_STOP_S, NoticePeriod
from clary.agent.supervisor.service_watch import ORPHAN_TIMEOUT_S, Heartbeat, OrderWatch
from clary.agent.supervisor.steps import MakeSteps
from clary.agent.supervisor.surroundings import Service, Surroundings
from clary.base.clock import Clock, SystemClock
from clary.contract.agent_protocol import (
    HEARTBEAT_INTERVAL_S,
    IS_LAST,
    NOTICE_MARGIN_S,
    RECLAIM_REASON,
    CapacityNotice,
    HostPhase,
    Order,
    OrderKind,
    ReportReceipt,
)
from clary.contract.launch_plan import LaunchPlan
from clary.contract.stop_limits import LAST_LINES_S, LINES_WITHOUT_PROGRESS_S, RELEASE_LINES_S

SPOOL_FOLDER = "log-spool"  # below the host's folder
EXIT_RELEASED = 0  # also after the service has reported the end of the attempt
EXIT_FAILED = 1  # no assignment, a defect of the agent, or a thread that does not end
EXIT_TERMINATED = 143  # SIGTERM, as a shell numbers it
SIGNAL_LOOK_S = 0.5  # longest delay until a notice is read
ANSWER_HEARTBEATS = 2  # heartbeats from a notice until the service's order to stop is expected

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits of the supervisor's waits; tests shorten these."""

    heartbeat_s: float = HEARTBEAT_INTERVAL_S
    assignment_s: float = 300.0  # wait for the plan from the service; no work can be lost yet
    orphan_s: float = ORPHAN_TIMEOUT_S  # time without the service until the program is killed
    margin_s: float = NOTICE_MARGIN_S  # before the engine's kill
    after_stop_s: float = AFTER_STOP_S  # after a notice without a kill, from the program's end to the agent's exit
    drain_s: float = LINES_WITHOUT_PROGRESS_S  # without progress of log lines while the service answers
    drain_most_s: float = LAST_LINES_S  # for log lines after the program's end, while the service answers
    release_lines_s: float = RELEASE_LINES_S
    last_report_s: float = 2.0
    join_s: float = 6.0  # longer than any request in flight


_ENDED = (HostPhase.EXITED, HostPhase.UPLOADING, HostPhase.DONE)  # phases of a host whose program has ended


class Supervisor:
    """Runs one host; `run` returns the agent's exit code.

    Args:
        service: receives reports and sends orders.
        host: name of this host, `algo-1`.
        make_steps: builds the work of this host from the plan.
        clock: time for records.
        limits: time limits of the waits.
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
        self._notice = NoticePeriod(
            answer_s=ANSWER_HEARTBEATS * self._limits.heartbeat_s,
            margin_s=self._limits.margin_s,
            after_stop_s=self._limits.after_stop_s,
        )
        self._held: tuple[float, Order] | None = None  # an order to stop, and the monotonic time to obey it at
        self._is_over = False  # the service has ended this attempt
        self.is_last = False  # whether the service ordered the host to leave its pool with the attempt

    def terminate(self, why: str = "SIGTERM") -> None:
        """Report to the service that the host's capacity ends soon, and stop the program. Safe in a signal handler."""
        self._notice.begin(why, has_ended=self._board.phase in _ENDED)
        self._mailbox.put(self._on_notice)

    def run(self) -> int:
        """Run the attempt and return the exit code of the agent; no process or thread remains afterwards."""
        self._heartbeat.start()
        try:
            plan = self._fetch_assignment()
            if plan is not None:
                self._life = self._begin_life(plan)
                self._board.take_up(plan.prepare_order)
                self._orders.begin_after(plan.prepare_order)
                self._orders.start()
                self._life.start()
                self._work_through_mailbox(self._life)
        except Exception as error:  # boundary: agent supervisor
            logger.exception("the agent has failed before it could do anything")
            self._board.enter(HostPhase.EXITED, failure=failure_of(error))
            self._exit_code = EXIT_FAILED
        finally:
            self._leave()
        if self._exit_code == EXIT_RELEASED and self._notice.has_begun:
            return EXIT_TERMINATED
        return EXIT_FAILED if self._exit_code is None else self._exit_code

    def _fetch_assignment(self) -> LaunchPlan | None:
        """Ask for the plan until it arrives; return None when further requests are useless."""
        deadline_s = time.monotonic() + self._limits.assignment_s
        back_off = BackOff()
        while not self._notice.has_begun and not self._is_over:
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
        self._exit_code = EXIT_TERMINATED if self._notice.has_begun else EXIT_RELEASED
        return None

    def _begin_life(self, plan: LaunchPlan) -> HostLife:
        self._notice.know(plan)
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
            on_signalled=self._on_signalled,
            is_vain=self._is_vain,
            drain_s=self._limits.drain_s,
            drain_most_s=self._limits.drain_most_s,
            service=self._service,
            clock=self._clock,
        )
        return HostLife(plan, host=self._host, around=around)

    def _work_through_mailbox(self, life: HostLife) -> None:
        while self._exit_code is None:
            due_at_s = min(filter(None, (life.due_at_s(), self._due_at_s(life))), default=None)
            act: Callable[[], None]
            try:
                left_s = SIGNAL_LOOK_S if due_at_s is None else due_at_s - time.monotonic()
                # A signal just before the wait does not end the wait: the signal's handler runs after it.
                act = self._mailbox.get(timeout=min(SIGNAL_LOOK_S, max(0.0, left_s)))
            except queue.Empty:
                act = self._act_if_due
            owed_results = self._owes_results()
            try:
                act()
            except Exception as error:  # boundary: agent supervisor; the host ends, and reports why
                logger.exception("unexpected error in phase %s", self._board.phase)
                if not life.end_after_defect(error):
                    self._exit_code = EXIT_FAILED
            if owed_results and not self._owes_results():
                self._notice.wait_for_release()
            is_over = self._notice.is_over(owes_results=self._owes_results())
            if is_over and self._board.phase not in BEFORE_EXIT and self._exit_code is None:
                self._exit_code = EXIT_TERMINATED

    def _owes_results(self) -> bool:
        """Whether the program has ended and the host's share of the results is not handed over to the service yet."""
        is_ended_early = self._notice.came_after_end and self._board.phase in _ENDED
        return is_ended_early or self._board.phase is HostPhase.UPLOADING

    def _due_at_s(self, life: HostLife) -> float | None:
        """Return the monotonic time at which a notice or a held order is due; None without either."""
        if self._held is not None:
            return self._held[0]
        if self._board.phase not in BEFORE_EXIT:
            return self._notice.leave_at_s(owes_results=self._owes_results())
        return None if life.is_stopped else self._notice.stop_at_s()

    def _act_if_due(self) -> None:
        life, now_s = self._life, time.monotonic()
        assert life is not None
        if self._held is not None and now_s >= self._held[0]:
            self._obey_held()
        stop_at_s = self._notice.stop_at_s()
        if stop_at_s is not None and now_s >= stop_at_s and not life.is_stopped and self._held is None:
            logger.warning("no order came within %d heartbeats of the notice", ANSWER_HEARTBEATS)
            life.stop(self._notice.left_s(), reason=RECLAIM_REASON)
        life.act_if_due()

    def _leave(self) -> None:
        """Kill running processes, report to the service that the host leaves, stop every thread."""
        life, log = self._life, self._log
        if life is not None:
            life.end_everything()
        is_released = self._exit_code == EXIT_RELEASED and not self._is_over
        if not self._is_over:
            if is_released:
                self._send_last_lines()
                self._board.enter(HostPhase.RELEASED)
            elif life is None and self._notice.has_begun:
                self._give_notice()
                self._board.enter(HostPhase.EXITED)  # no program has run
            self._board.wait_until_told(self._limits.last_report_s)
        self._service.break_off()
        stopped = [self._heartbeat.close(self._limits.join_s), self._orders.close(self._limits.join_s)]
        if life is not None:
            stopped.append(life.close())
        if log is not None:
            stopped.append(log.close(self._limits.join_s, keeps_unsent=is_released))
        if all(stopped):
            self._service.close()
        else:
            logger.error("a thread did not end in time; it ends with the process")
            self._exit_code = EXIT_FAILED  # the process must end: no other attempt may run while the thread runs
        if self._log_handler is not None:
            close_agent_log(self._log_handler)

    def _send_last_lines(self) -> None:
        """Send the log lines that earlier waits have left; the report of the release has the number of the others."""
        if self._log is None:
            return
        num_unsent = self._log.send_last(self._limits.release_lines_s, give_up=self._is_vain)
        if num_unsent:
            logger.warning("%d log lines are not sent: the host is released", num_unsent)
            self._board.note(num_unsent_lines=num_unsent)

    def _is_vain(self) -> bool:
        """Whether waiting for the service is useless."""
        return self._is_over or self._notice.is_over(owes_results=self._owes_results())

    def _pass_on_order(self, order: Order) -> None:
        self._mailbox.put(lambda: self._on_order(order))

    def _pass_on_receipt(self, receipt: ReportReceipt) -> None:
        self._orders.expect(receipt.order_number)
        if self._life is None:  # the next receipt repeats the request
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
        elif order.kind is OrderKind.STOP:
            pause_s = self._notice.pause_s(order.reason) if self._board.phase is HostPhase.RUNNING else 0.0
            self._held = (time.monotonic() + pause_s, order)
            if pause_s == 0 or self._life.is_stopped:
                self._obey_held()
        else:
            self._life.obey(order)

    def _on_over(self, reason: str) -> None:
        logger.warning("leaving: %s", reason)
        self._exit_code = EXIT_RELEASED

    def _obey_held(self) -> None:
        """Stop as ordered, or sooner if a notice leaves less time."""
        assert self._life is not None
        assert self._held is not None
        (_, order), self._held = self._held, None
        self._life.obey(replace(order, grace_s=self._notice.grace_s(order.grace_s)))

    def _on_notice(self) -> None:
        assert self._life is not None
        if self._give_notice():
            self._life.say_notice(self._notice.why)

    def _give_notice(self) -> bool:
        """Report the notice to the service; return whether it is the first."""
        is_first = self._board.facts.notice is None
        if is_first:
            logger.warning("notice: %s", self._notice.why)
            notice = CapacityNotice(why=self._notice.why, at=self._clock.now(), grace_s=self._notice.engine_grace_s)
            self._board.give_notice(notice)
        return is_first

    def _on_signalled(self) -> None:
        """Stop at once: the engine's SIGTERM went to every process of the host, so the programs are stopping."""
        assert self._life is not None
        self._notice.begin("SIGTERM", has_ended=self._board.phase in _ENDED)
        self._notice.hear_of_all()
        self._on_notice()
        if self._held is not None:
            self._obey_held()
        elif not self._life.is_stopped:
            self._life.stop(self._notice.left_s(), reason=RECLAIM_REASON)
