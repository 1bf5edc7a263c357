"""Receives samples of hosts: checks batches, stores each row once, remembers each host's last values.

Where: `server.route_table` calls this, the database keeps the rows (`store.series_blocks`), `/metrics` shows the last
values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract.metric_samples import SampleBatch, SampleReceipt
from clary.control.jobs.training_job import TrainingJob
from clary.control.series.checks import complaint
from clary.control.series.tables import SeriesTable, table_of
from clary.control.store.errors import JobNotFound

FRESH_S = 60.0  # a host that has sent no samples for longer has no current values


class SeriesSink(Protocol):
    """The part of the series store that the gateway uses."""

    async def append(
        self, job_name: str, attempt: int, host: str, table: SeriesTable, *, first_row: int, num_dropped: int = 0
    ) -> int:
        """Store rows exactly once by number; return the next row; raises JobNotFound.

        Args: as `SeriesBlocks.append`.
        """


@dataclass(frozen=True, kw_only=True)
class LastValues:
    """The newest value of each series of a host."""

    job_name: str
    attempt: int
    host: str
    heard_s: float  # monotonic time of the last batch
    values: Mapping[str, float]


class SampleGateway:
    """Answers agents that send samples."""

    def __init__(self, series: SeriesSink, clock: Clock) -> None:
        self._series = series
        self._clock = clock
        self._last: dict[tuple[str, str], LastValues] = {}  # (job, host) -> last values
        self.num_rows = 0  # rows received since the service began; a row that was sent twice counts twice

    async def append(self, job: TrainingJob, host: str, batch: SampleBatch) -> SampleReceipt:
        """Store rows of a host that are not stored yet.

        Raises: WireError 400 for a batch that no host can have measured, 410 when the job was deleted.
        """
        wrong = complaint(batch, now_ms=int(self._clock.now().timestamp() * 1000))
        if wrong:
            raise WireError("ValidationException", f"samples of {host}: {wrong}")
        table = table_of(batch)
        try:
            next_row = await self._series.append(
                job.name, job.attempt, host, table, first_row=batch.first_row, num_dropped=batch.num_dropped
            )
        except JobNotFound as error:
            message = f"attempt {job.attempt} of {job.name} is over"
            raise WireError("AttemptOver", message, http_status=410) from error
        if table.num_rows and next_row == batch.first_row + table.num_rows:  # otherwise it is an old batch
            self.num_rows += table.num_rows
            self._remember(job, host, table)
        return SampleReceipt(next_row=next_row)

    def last_values(self, jobs: Iterable[TrainingJob]) -> list[LastValues]:
        """Return the last values of running jobs' hosts; forget the values of other hosts."""
        attempts = {job.name: job.attempt for job in jobs}
        now_s = self._clock.monotonic()
        self._last = {
            key: last
            for key, last in self._last.items()
            if attempts.get(last.job_name) == last.attempt and now_s - last.heard_s <= FRESH_S
        }
        return list(self._last.values())

    def forget_stale(self) -> None:
        """Forget hosts that have sent no samples for a while; `last_values` does so too, but may never be called."""
        now_s = self._clock.monotonic()
        self._last = {key: last for key, last in self._last.items() if now_s - last.heard_s <= FRESH_S}

    def _remember(self, job: TrainingJob, host: str, table: SeriesTable) -> None:
        values = {}
        for name, (column,) in table.columns.items():
            if not math.isnan(column[-1]):  # the usual case
                values[name] = column[-1]
            elif known := [value for value in column if not math.isnan(value)]:
                values[name] = known[-1]
        self._last[job.name, host] = LastValues(
            job_name=job.name,
            attempt=job.attempt,
            host=host,
            heard_s=self._clock.monotonic(),
            values=values,
        )
