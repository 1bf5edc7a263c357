"""The thread that sends log lines from the spool to the service.

Where: `host_log` starts it, and ends it after all lines are delivered; see `sender` for the delivery guarantees.
`drain` ensures that all output is readable before a terminal status.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from clary.agent.log.log_batches import LogBatches
from clary.agent.log.log_intake import LogIntake
from clary.agent.log.log_spool import LogSpool
from clary.agent.log.metrics import MetricFinder
from clary.agent.sender import Parcel, Sender
from clary.agent.service_client import AttemptOver, BackOff
from clary.base.errors import AgentError
from clary.contract.agent_protocol import LogBatch, LogReceipt

GATHER_S = 0.05  # how long an incomplete batch waits for more lines; a line may take 300 ms to reach the service
TICK_S = 1.0


class LogReceiver(Protocol):
    """The part of the service that the shipper uses."""

    def encode_logs(self, batch: LogBatch) -> bytes:
        """Return an encoded batch; may be called from another thread than `send_logs`."""

    def send_logs(self, body: bytes) -> LogReceipt:
        """Store an encoded batch. Raises: ServiceUnreachable, ServiceRefused, AttemptOver."""


class LogShipper(Sender):
    """Sends lines in order until `abort`; repeats each batch until it is stored.

    Args:
        service: receives the lines.
        spool: source of the lines.
        intake: its `tick` is called about once per second, for progress bars.
        metrics: finds metric values in the lines.
        on_over: called when the service accepts no more data of this attempt.
        on_problem: called with a sentence about an error that prevents all further delivery.
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
        self._batches = LogBatches(spool, metrics, encode=service.encode_logs)
        super().__init__(
            "log-shipper",
            failure="the log shipper has ended",
            what="log lines",
            source=self._batches,
            give_up=None,
            back_off=BackOff(),
        )
        self._service = service
        self._spool = spool
        self._intake = intake
        self._on_over = on_over
        self._on_problem = on_problem
        self._next_tick_s = time.monotonic() + TICK_S

    @property
    def num_unsent(self) -> int:
        """Number of lines that the service has not stored."""
        return max(0, self._spool.end_sequence - self._batches.first)

    def drain(self, timeout_s: float, *, give_up: Callable[[], bool] = lambda: False, most_s: float = math.inf) -> bool:
        """Wait until every line appended so far is stored; return whether all are.

        Args:
            timeout_s: longest time without progress while the service answers.
            give_up: called several times per second; True ends the wait.
            most_s: longest time, with progress, while the service answers.
        """
        end = self._spool.end_sequence
        return self.wait_sent(end, timeout_s, outlasts_outages=True, most_s=most_s, is_vain=give_up)

    def abort(self) -> None:
        """Send no further batch; return at once."""
        super().abort()
        self._spool.wake()

    def _round(self) -> float | None:
        if time.monotonic() >= self._next_tick_s:
            self._intake.tick()
            self._next_tick_s = time.monotonic() + TICK_S
        parcel = self._parcel()
        if parcel is None:
            return GATHER_S if self._spool.wait(self._batches.first, TICK_S) else 0.0
        try:
            return self._deliver(parcel)
        except AttemptOver as error:
            self._on_over(error.message)
            return None

    def _parcel(self) -> Parcel | None:
        batch = self._batches.take()
        if batch is None:
            return None

        def send() -> int:
            wanted = self._batches.in_spool(self._service.send_logs(batch.body).next_sequence)
            if wanted > batch.end_sequence:
                raise AgentError(
                    f"the service says that lines below {wanted} are stored, but only {batch.end_sequence} were sent;"
                    " does another agent write to this log?"
                )
            return wanted

        return Parcel(batch.first_sequence, batch.end_sequence, send)

    def _on_failure(self, error: Exception) -> None:
        self._on_problem("log lines are not delivered any more: see agent.log of this host")

    def _on_end(self) -> None:
        self._batches.close()
