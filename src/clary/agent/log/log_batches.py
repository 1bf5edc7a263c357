"""Batches of log lines for the service; the next batch is made while the current batch is sent.

Where: `log_shipper` sends one batch after the other. Reading, metric matching and encoding cost the agent about as much
processor time as storing costs the service; without this overlap, agent and service would work in turns during a flood.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from clary.agent.log.log_spool import LogSpool
from clary.agent.log.metrics import MetricFinder
from clary.base.errors import AgentError
from clary.contract.agent_protocol import LogBatch

BATCH_LINES = 16_384
BATCH_BYTES = 1024 * 1024  # text per batch; its JSON, at most six times as large, is below the service's limit
FLOOD_BYTES = BATCH_BYTES // 2  # a batch of this size is probably followed by another

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadyBatch:
    """Lines from `first_sequence` up to, but not including, `end_sequence`, encoded."""

    first_sequence: int
    end_sequence: int
    body: bytes


class LogBatches:
    """Makes batches from a spool.

    Threads: one thread calls `take`, `acknowledge` and `close`. A second thread, which exists only in floods, works
    while the first thread sends; the two never read concurrently.

    Args:
        spool: source of the lines.
        metrics: finds metric values in the lines; closed by `close`.
        encode: encodes a batch for sending.

    Numbers are the spool's. The log's numbers are lower once the service has lost lines that it had acknowledged and
    that the spool no longer has: one line takes the place of the lost ones (`LogSpool.close_gap`).

    Attributes:
        first: number of the first line that the service does not have; it decreases if the service has lost lines that
            it had acknowledged.
    """

    def __init__(self, spool: LogSpool, metrics: MetricFinder, *, encode: Callable[[LogBatch], bytes]) -> None:
        self._spool = spool
        self._metrics = metrics
        self._encode = encode
        self._maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-batches")  # starts no thread yet
        self._ahead: Future[ReadyBatch] | None = None
        self._ahead_sequence = 0  # first line of the prepared batch
        self._taken: ReadyBatch | None = None  # returned again until it is acknowledged
        self._fallen = 0
        self.first = 0

    def in_spool(self, log_sequence: int) -> int:
        """Return the spool's number for a number of the log."""
        return log_sequence + self._fallen

    def acknowledge(self, end: int) -> None:
        """Record that the service has all lines below a number and needs the lines from that number on."""
        self.first, self._taken = end, None
        self._spool.let_go(end)

    def take(self) -> ReadyBatch | None:
        """Return the batch from `first` on, the same until acknowledged; in a flood, also begin the next batch.

        Return None if the spool has no such line yet. Raises: AgentError if the spool cannot return its lines.
        """
        if self._taken is not None:
            return self._taken
        if self._spool.end_sequence <= self.first:
            return None
        self._taken = ready = self._take_ahead(self.first) or self._make(self._close_gap(self.first))
        if len(ready.body) >= FLOOD_BYTES and self._spool.end_sequence > ready.end_sequence:
            self._ahead_sequence = ready.end_sequence
            self._ahead = self._maker.submit(self._make, ready.end_sequence)
        return ready

    def close(self) -> None:
        """End the second thread and metric matching."""
        self._maker.shutdown(wait=True, cancel_futures=True)
        self._metrics.close()

    def _take_ahead(self, first_sequence: int) -> ReadyBatch | None:
        """Return the prepared batch, or None if it is missing or the service has requested other lines."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        error = ahead.exception()  # waits for the batch, so that only one thread reads
        if self._ahead_sequence != first_sequence:
            return None
        if error is not None:
            raise error
        return ahead.result()

    def _close_gap(self, first_sequence: int) -> int:
        """Return the number from which on the spool can be read: lower only after lines that are lost for good."""
        oldest = self._spool.oldest_sequence
        if first_sequence >= oldest:
            return first_sequence
        logger.warning(
            "the service has lost the lines of the log from %d on; the lines before %d are no longer here",
            first_sequence - self._fallen,
            oldest - self._fallen,
        )
        self._fallen += self._spool.close_gap(first_sequence)
        self.first = oldest - 1
        return self.first

    def _make(self, first_sequence: int) -> ReadyBatch:
        blocks = self._spool.read(first_sequence, max_lines=BATCH_LINES, max_bytes=BATCH_BYTES)
        if not blocks:  # an empty batch would be sent again and again without a pause
            raise AgentError(
                f"the spool of this host holds lines {first_sequence} to {self._spool.end_sequence - 1}, but gives back"
                " none of them; were its files removed?"
            )
        batch = LogBatch(first_sequence=first_sequence - self._fallen, blocks=tuple(self._metrics.find(blocks)))
        return ReadyBatch(first_sequence, self.in_spool(batch.end_sequence), self._encode(batch))
