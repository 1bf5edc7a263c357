"""Values that programs report for a trial component, with steps, and their summaries.

Where: `services.experiments.value_calls` stores and reads them, `services.experiments.summaries` reads their summaries.
Values of a training job's own component are in the table of job metrics, together with the values of metric
definitions; `of_job` selects the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, case, func, insert, select

from clary.control.jobs.training_job import FinalMetric
from clary.control.store.series_blocks import Runner
from clary.control.store.tables import component_metrics, from_microseconds, metrics, to_microseconds, tracked
from clary.control.store.tracking.experiment_rows import Kind, key_of

US_PER_S = 1_000_000
LARGEST = 1e150  # its square is finite; PostgreSQL computes no mean and deviation of larger values
MAX_ROWS = 200_000  # rows read for one answer
_MOST = 2**63 - 1  # largest BIGINT
_AT_ONCE = 200  # owners in one query


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of a metric's values; NaN values are left out.

    Mean and deviation are NaN if a value is infinite or larger than `LARGEST`.
    """

    name: str
    least: float
    greatest: float
    mean: float
    deviation: float  # population standard deviation, not that of a sample
    last: float
    count: int
    last_at: datetime


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Owner of values: a training job, or else a component by its key."""

    name: str
    of_job: bool = False


class ComponentMetrics:
    """Values of components in a database, as `ExperimentStore.values`."""

    def __init__(self, *, read: Runner, write: Runner) -> None:
        self._read = read
        self._write = write

    async def add(self, component: str, values: Sequence[FinalMetric]) -> bool:
        """Append values, which may be NaN or infinite; return False if the component does not exist."""
        key = key_of(component)
        rows = [
            {
                "metric_name": item.name,
                "at": to_microseconds(item.at),
                "step": item.step,
                "value": None if math.isnan(item.value) else item.value,
                "component_key": key,
            }
            for item in values
        ]

        def put(connection: Connection) -> bool:
            # Lock the component against deletion until the values are written; SQLite has only one writer anyway.
            is_it = (tracked.c.kind == Kind.COMPONENT.value) & (tracked.c.name_key == key)
            holds = select(tracked.c.name).where(is_it).with_for_update(read=True, key_share=True)
            if connection.execute(holds).scalar() is None:
                return False
            connection.execute(insert(component_metrics), rows)
            return True

        return await self._write(put)

    async def summaries(self, owners: Sequence[Owner]) -> dict[Owner, list[Summary]]:
        """Return owner -> summaries of its metrics, sorted by name."""
        wanted = {(owner.of_job, owner.name): owner for owner in owners}

        def ask(connection: Connection) -> dict[Owner, list[Summary]]:
            found: dict[Owner, list[Summary]] = {}
            for of_job in (True, False):
                names = [owner.name for owner in owners if owner.of_job is of_job]
                for start in range(0, len(names), _AT_ONCE):
                    for row in _summary_rows(connection, of_job=of_job, names=names[start : start + _AT_ONCE]):
                        found.setdefault(wanted[of_job, row.owner], []).append(_summary_of(row))
            return found

        return await self._read(ask)

    async def buckets(
        self, owner: Owner, name: str, *, width_s: int | None, start: int | None, end: int | None, limit: int
    ) -> tuple[list[tuple[int, Summary]], bool]:
        """Return the values of one metric in buckets, and whether further buckets follow.

        Each bucket is a pair (begin, summary of its values); buckets are in order.

        Args:
            owner: owner of the values.
            name: name of the metric.
            width_s: width of a bucket in seconds; None for one bucket per step.
            start: first time in seconds since 1970, or first step; None for the first stored value.
            end: last time in seconds since 1970, or last step, inclusive; None for the last stored value.
            limit: maximum number of buckets.
        """
        table, column = _place(owner.of_job)
        chosen = (column == owner.name) & (table.c.metric_name == name) & table.c.value.is_not(None)
        if width_s is None:
            axis: Any = table.c.step
            bounded = axis.is_not(None)
        else:
            axis = table.c.at
            bounded = chosen
        statement = select(table.c.id, table.c.at, table.c.step, table.c.value).where(chosen, bounded)
        scale = 1 if width_s is None else US_PER_S
        if start is not None:
            statement = statement.where(axis >= max(-_MOST, min(start * scale, _MOST)))
        if end is not None:
            statement = statement.where(axis < max(-_MOST, min((end + 1) * scale, _MOST)))
        statement = statement.order_by(axis, table.c.at, table.c.id)

        def ask(connection: Connection) -> tuple[list[tuple[int, Summary]], bool]:
            rows = connection.execute(statement.limit(MAX_ROWS + 1)).all()
            groups: dict[int, list[Row[Any]]] = {}
            for row in rows:
                begin = row.step if width_s is None else row.at // (width_s * US_PER_S) * width_s
                groups.setdefault(begin, []).append(row)
            if len(rows) > MAX_ROWS:
                groups.popitem()  # the last bucket may have values that were not read
            shown = list(groups.items())[:limit]
            is_cut = len(rows) > MAX_ROWS or len(groups) > limit
            return [
                (begin, summary(name, [row.value for row in inside], last_at=inside[-1].at)) for begin, inside in shown
            ], is_cut

        return await self._read(ask)


def summary(name: str, values: Sequence[float], *, last_at: int) -> Summary:
    """Return the summary of at least one value.

    Args:
        name: name of the metric.
        values: in order of time.
        last_at: time of the last value, in microseconds since 1970.
    """
    is_small = all(abs(value) <= LARGEST for value in values)
    mean = math.fsum(values) / len(values) if is_small else math.nan
    spread = math.fsum((value - mean) ** 2 for value in values) if is_small else math.nan
    return Summary(
        name=name,
        least=min(values),
        greatest=max(values),
        mean=mean,
        deviation=math.sqrt(spread / len(values)),
        last=values[-1],
        count=len(values),
        last_at=from_microseconds(last_at),
    )


def _place(of_job: bool) -> tuple[Any, Any]:
    return (metrics, metrics.c.job_name) if of_job else (component_metrics, component_metrics.c.component_key)


def _summary_rows(connection: Connection, *, of_job: bool, names: Sequence[str]) -> Sequence[Row[Any]]:
    """Return one row per metric; the database reads the values twice, since the deviation needs the mean."""
    table, column = _place(of_job)
    counted = (
        select(column.label("owner"), table.c.metric_name, table.c.at, table.c.id, table.c.value)
        .where(column.in_(names), table.c.value.is_not(None))
        .cte("counted")
    )
    newest = func.row_number().over(
        partition_by=(counted.c.owner, counted.c.metric_name), order_by=(counted.c.at.desc(), counted.c.id.desc())
    )
    small = case((func.abs(counted.c.value) <= LARGEST, counted.c.value))
    mean = func.avg(small).over(partition_by=(counted.c.owner, counted.c.metric_name))
    ranked = select(counted, small.label("small"), newest.label("age"), mean.label("mean")).cte("ranked")
    is_last = ranked.c.age == 1
    columns = ranked.c
    statement = (
        select(
            columns.owner,
            columns.metric_name,
            func.min(columns.value).label("least"),
            func.max(columns.value).label("greatest"),
            func.max(columns.mean).label("mean"),
            func.avg((columns.small - columns.mean) * (columns.small - columns.mean)).label("variance"),
            func.count().label("num_values"),
            func.count(columns.small).label("num_small"),
            func.max(columns.value).filter(is_last).label("last"),
            func.max(columns.at).label("last_at"),
        )
        .group_by(columns.owner, columns.metric_name)
        .order_by(columns.metric_name)
    )
    return connection.execute(statement).all()


def _summary_of(row: Row[Any]) -> Summary:
    return Summary(
        name=row.metric_name,
        least=row.least,
        greatest=row.greatest,
        mean=row.mean if row.num_small == row.num_values else math.nan,
        deviation=math.sqrt(row.variance) if row.num_small == row.num_values else math.nan,
        last=row.last,
        count=row.num_values,
        last_at=from_microseconds(row.last_at),
    )
