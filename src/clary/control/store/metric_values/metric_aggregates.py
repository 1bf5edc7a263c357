"""Statistics of a job's metrics, computed by the database.

Where: `Store.aggregates`. GetMetricStatistics and GetMetricData read periods; no value leaves the database by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, case, func, select

from clary.control.store.series_blocks import Runner
from clary.control.store.tables import jobs, metrics, to_microseconds

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


class MetricAggregates:
    """Aggregates of metrics in a database, as `Store.aggregates`."""

    def __init__(self, *, read: Runner) -> None:
        self._read = read

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
                # Damaged values that are not numbers are above all numbers in SQLite; `float` refuses them.
                (first + index * width) // _PER_S: PeriodValues(
                    float(least), float(greatest), _total(small, great), count
                )
                for index, least, greatest, small, great, count in connection.execute(statement)
            }

        return await self._read(find)


def _is_of(job_name: str | None) -> ColumnElement[bool]:
    """Return the condition on a value's job; naming all jobs lets the index be used, which begins with them."""
    return metrics.c.job_name.in_(select(jobs.c.name)) if job_name is None else metrics.c.job_name == job_name


def _total(small: float | None, great: float | None) -> float:
    """Return a sum; SQLite answers NULL if infinite values of both signs were added."""
    return math.nan if small is None or great is None else small + great / _FACTOR
