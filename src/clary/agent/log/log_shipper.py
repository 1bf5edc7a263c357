"""The thread that carries log lines from the spool to the service.

Where: started by the supervisor, ended by it when nothing is owed any more. A batch is sent until the service says that
it is stored; the service answers with the number of the first line that it does not have, so that a batch whose answer
was lost is neither stored twice nor skipped. `drain` is the promise behind every terminal status: what was printed is
readable first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from clary.agent.log.log_batches import LogBatches, ReadyBatch
from clary.agent.log.log_intake import LogIntake
from clary.agent.log.log_spool import LogSpool
from clary.agent.log.metrics import MetricFinder
from clary.agent.service_client import AttemptOver, BackOff, ServiceRefused, ServiceUnreachable
from clary.base.errors import AgentError
from clary.contract.agent_protocol import LogBatch, LogReceipt

GATHER_S = 0.05  # a batch that is not full waits this long for more; well under the 300 ms that a line may take
TICK_S = 1.0

logger = logging.getLogger(__name__)


class LogReceiver(Protocol):
    """The service as the shipper sees it."""

    def encode_logs(self, batch: LogBatch) -> bytes:
        """Return a batch in the form in which it is sent; may be called from another thread than `send_logs`."""

    def send_logs(self, body: bytes) -> LogReceipt:
        """Store an encoded batch; raises ServiceUnreachable, ServiceRefused or AttemptOver."""


class LogShipper:
    """Sends lines in order until `stop`.

    Args:
        service: where lines go.
        spool: where they come from.
        intake: ticked about once a second, for progress bars.
        metrics: finds metric values in lines on their way.
        on_over: told when the service wants nothing of this attempt any more.
        on_problem: told, in a sentence, what stands in the way of the log for good.
    """

    def __init__(
        self,
        service: LogReceiver,
        *,
        spool: LogSpool,
        intake: LogIntake,
        metrics: MetricFinder,
        on_over: Callable[[str], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._service = service
        self._spool = spool
        self._intake = intake
        self._batches = LogBatches(spool, metrics, encode=service.encode_logs)
        self._on_over = on_over
        self._on_problem = on_problem
        self._back_off = BackOff()
        self._stored = 0  # every line below this number is stored by the service
        self._stored_changed = threading.Condition()
        self._progress_at_s = time.monotonic()  # last time that lines were stored
        self._is_away = False  # whether the last try found no service
        self._has_ended = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def drain(self, timeout_s: float, *, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until every line appended so far is stored; return whether it is.

        Args:
            timeout_s: longest time without progress while the service answers; time in which it cannot be reached
                does not count, as nothing else could be told to it either.
            give_up: asked several times a second whether to stop waiting.
        """
        end = self._spool.end_sequence
        self._progress_at_s = time.monotonic()
        with self._stored_changed:
            while self._stored < end and not self._has_ended:
                if self._is_away:
                    self._progress_at_s = time.monotonic()
                if give_up() or time.monotonic() - self._progress_at_s > timeout_s:
                    break
                self._stored_changed.wait(0.2)
            return self._stored >= end

    def stop(self, timeout_s: float) -> bool:
        """End the thread and the matching of metrics; return whether it ended in time."""
        self._stopping.set()
        self._spool.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._ship()
        except Exception:  # boundary: the log's thread; a defect here must not end the program
            logger.exception("the log shipper has ended")
            self._on_problem("log lines are not delivered any more: see agent.log of this host")
        finally:
            self._batches.close()
            with self._stored_changed:
                self._has_ended = True
                self._stored_changed.notify_all()

    def _ship(self) -> None:
        next_tick_s = time.monotonic() + TICK_S
        while not self._stopping.is_set():
            if time.monotonic() >= next_tick_s:
                self._intake.tick()
                next_tick_s = time.monotonic() + TICK_S
            if self._spool.end_sequence <= self._stored:
                if self._spool.wait(self._stored, TICK_S):
                    self._stopping.wait(GATHER_S)
                continue
            if not self._deliver(self._batches.take(self._stored)):
                return

    def _deliver(self, batch: ReadyBatch) -> bool:
        """Send one batch until it is stored; false when there is no use in going on."""
        has_logged = False
        while not self._stopping.is_set():
            try:
                receipt = self._service.send_logs(batch.body)
            except AttemptOver as error:
                self._on_over(error.message)
                return False
            except (ServiceUnreachable, ServiceRefused) as error:
                if not has_logged:
                    logger.warning("log lines wait: %s", error)
                    has_logged = True
                self._is_away = "status" not in error.details
                self._stopping.wait(self._back_off.next_s())
                continue
            self._is_away = False
            if receipt.next_sequence > batch.first_sequence:
                self._back_off.reset()
            else:  # the service has fewer lines than it said: it gets them again, but not in a hurry
                self._stopping.wait(self._back_off.next_s())
            if receipt.next_sequence > batch.end_sequence:
                raise AgentError(
                    f"the service says that lines below {receipt.next_sequence} are stored, but only"
                    f" {batch.end_sequence} were sent; does another agent write to this log?"
                )
            self._note_stored(receipt.next_sequence)
            return True
        return False

    def _note_stored(self, next_sequence: int) -> None:
        with self._stored_changed:
            if next_sequence != self._stored:
                self._progress_at_s = time.monotonic()
            self._stored = next_sequence
            self._stored_changed.notify_all()
        self._spool.let_go(next_sequence)
