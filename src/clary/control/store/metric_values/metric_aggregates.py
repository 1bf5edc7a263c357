"""Statistics of a job's metrics, computed by the database, and the number of values that a program may add.

Where: `Store.aggregates`. GetMetricStatistics and GetMetricData read periods; PutMetricData and BatchPutMetrics make
room for their values first. All values are in the table of metrics; the limits keep each query below a second or so.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, case, func, select

from clary.control.jobs.training_job import FinalMetric, TrainingJob
from clary.control.store.errors import MetricsFull
from clary.control.store.metric_values.metric_curves import names_of
from clary.control.store.series_blocks import Runner
from clary.control.store.tables import jobs, metrics, to_microseconds

MAX_JOB_VALUES = 1_000_000  # values of a job, of all its metrics, beyond which its program can add none
MAX_JOB_METRICS = 10_000  # metrics of a job beyond which its program can add none
MAX_COUNTED = 32  # jobs whose counts are cached, about a megabyte for each
_PER_S = 1_000_000  # microseconds
_LONGEST = 2**62  # microseconds; databases compute with 64 bits
# Greater values are added up separately and smaller by this factor: PostgreSQL fails if a sum overflows.
_GREAT = 2.0**512
_FACTOR = 2.0**-64


class PeriodValues(NamedTuple):
    """Statistics of the values of a period that are numbers."""

    least: float
    greatest: float
    total: float
    num_values: int


@dataclass
class _Room:
    """How many values a job has, and the hashes of its metrics' names."""

    num_values: int
    names: set[int]


class MetricAggregates:
    """Aggregates of metrics in a database, as `Store.aggregates`."""

    def __init__(self, *, read: Runner) -> None:
        self._read = read
        # Most recently used last. Another job of the same name has another time of creation.
        self._rooms: OrderedDict[tuple[str, datetime], _Room] = OrderedDict()

    async def by_period(
        self, job_name: str | None, metric_name: str, *, start: datetime, end: datetime, period_s: int
    ) -> Mapping[int, PeriodValues]:
        """Return the statistics of each period with values that are numbers, by its start in seconds since 1970.

        Args:
            job_name: name of any job; None for all jobs together.
            metric_name: as it was stored, case included.
            start: aware time; the period that contains it counts as a whole.
            end: aware time, exclusive.
            period_s: length of a period in seconds; periods begin at its multiples since 1970.
        """
        width = min(period_s * _PER_S, _LONGEST)
        first = to_microseconds(start) // width * width
        at, value = metrics.c.at, metrics.c.value
        # Counted from the first period: databases round negative quotients towards zero.
        number = ((at - first) // width).label("number")
        is_great = func.abs(value) >= _GREAT
        statement = (
            select(
                number,
                func.min(value),
                func.max(value),
                func.sum(case((is_great, 0.0), else_=value)),
                func.sum(case((is_great, value * _FACTOR), else_=0.0)),
                func.count(value),
            )
            .where(_is_of(job_name), metrics.c.metric_name == metric_name)
            .where(at >= first, at < to_microseconds(end), value.is_not(None))
            .group_by(number)
        )

        def find(connection: Connection) -> dict[int, PeriodValues]:
            return {
                (first + index * width) // _PER_S: PeriodValues(least, greatest, _total(small, great), count)
                for index, least, greatest, small, great, count in connection.execute(statement)
            }

        return await self._read(find)

    @asynccontextmanager
    async def room_for(self, job: TrainingJob, values: Sequence[FinalMetric]) -> AsyncIterator[None]:
        """Make room for values that a job's program adds within the block; an error of the block gives it back.

        Args:
            job: job of the values.
            values: the values.
        Raises: MetricsFull if the job would have more than MAX_JOB_VALUES values or MAX_JOB_METRICS metrics.
        """
        room = await self._room_of(job)
        new = {hash(value.name) for value in values} - room.names
        if room.num_values + len(values) > MAX_JOB_VALUES:
            raise MetricsFull(
                f"the training job {job.name} has {room.num_values} values of metrics and can not have {len(values)} "
                f"more: a job's program can add values up to {MAX_JOB_VALUES} values in all; send fewer, such as means"
            )
        if new and len(room.names) + len(new) > MAX_JOB_METRICS:
            raise MetricsFull(
                f"the training job {job.name} has {len(room.names)} metrics and can not have {len(new)} more: a job's "
                f"program can add metrics up to {MAX_JOB_METRICS} metrics in all, each combination of dimensions "
                "counted; use fewer names and dimensions"
            )
        room.num_values += len(values)
        room.names |= new
        try:
            yield
        except BaseException:
            room.num_values -= len(values)
            room.names -= new
            raise

    def forget(self) -> None:
        """Forget all counts; they are read from the database again."""
        self._rooms.clear()

    async def _room_of(self, job: TrainingJob) -> _Room:
        key = (job.name, job.created_at)
        if key not in self._rooms:
            count = select(func.count()).where(metrics.c.job_name == job.name)

            def find(connection: Connection) -> _Room:
                names = {hash(name) for name in names_of(connection, job.name, prefix="")}
                return _Room(connection.execute(count).scalar() or 0, names)

            found = await self._read(find)
            self._rooms.setdefault(key, found)  # values added meanwhile are counted in the room that was first
        self._rooms.move_to_end(key)
        while len(self._rooms) > MAX_COUNTED:
            self._rooms.popitem(last=False)
        return self._rooms[key]


def _is_of(job_name: str | None) -> ColumnElement[bool]:
    """Return the condition on a value's job; naming all jobs lets the index be used, which begins with them."""
    return metrics.c.job_name.in_(select(jobs.c.name)) if job_name is None else metrics.c.job_name == job_name


def _total(small: float | None, great: float | None) -> float:
    """Return a sum; SQLite answers NULL if infinite values of both signs were added."""
    return math.nan if small is None or great is None else small + great / _FACTOR
