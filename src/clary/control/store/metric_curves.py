"""Metrics of a job as curves of few points, thinned out by the database.

Where: `Store.curves`; the console's charts and its comparison of jobs. Values are in the table of metrics, whoever
brought them there. A metric with more values than asked for is cut into stretches of equal length, of each of which
the least and the greatest value are kept: a chart shows every spike, whatever its width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from clary.control.store.series_blocks import Runner
from clary.control.store.tables import metrics

MAX_POINTS = 5000  # of one curve
MAX_CURVES = 100  # of one answer
_PER_MS = 1000  # microseconds


class CurvePoint(NamedTuple):
    """A value; None is not-a-number."""

    at_ms: int
    value: float | None
    step: int | None


@dataclass(frozen=True, kw_only=True)
class _Extent:
    count: int
    first_at: int
    last_at: int


class MetricCurves:
    """Reads curves from the database."""

    def __init__(self, *, read: Runner) -> None:
        self._read = read

    async def curves(
        self, job_name: str, *, names: Sequence[str] | None, num_points: int
    ) -> Mapping[str, list[CurvePoint]]:
        """Return curves by name, oldest point first.

        Args:
            job_name: whose.
            names: of metrics, those that do not exist are left out; None for all, up to MAX_CURVES.
            num_points: of each curve at most, 2 to MAX_POINTS.
        """

        def find(connection: Connection) -> dict[str, list[CurvePoint]]:
            extents = _extents(connection, job_name, names)
            return {
                name: _curve(connection, job_name, name, extent, num_points=max(2, min(num_points, MAX_POINTS)))
                for name, extent in extents.items()
            }

        return await self._read(find)


def _extents(connection: Connection, job_name: str, names: Sequence[str] | None) -> dict[str, _Extent]:
    statement = (
        select(metrics.c.metric_name, func.count(), func.min(metrics.c.at), func.max(metrics.c.at))
        .where(metrics.c.job_name == job_name)
        .group_by(metrics.c.metric_name)
        .order_by(metrics.c.metric_name)
        .limit(MAX_CURVES)
    )
    if names is not None:
        statement = statement.where(metrics.c.metric_name.in_(list(names)))
    return {
        name: _Extent(count=count, first_at=first, last_at=last)
        for name, count, first, last in connection.execute(statement)
    }


def _curve(connection: Connection, job_name: str, name: str, extent: _Extent, *, num_points: int) -> list[CurvePoint]:
    own = (metrics.c.job_name == job_name, metrics.c.metric_name == name)
    if extent.count <= num_points:
        rows = connection.execute(
            select(metrics.c.at, metrics.c.value, metrics.c.step).where(*own).order_by(metrics.c.at, metrics.c.id)
        )
        return [CurvePoint(at // _PER_MS, value, step) for at, value, step in rows]
    num_stretches = max(1, (num_points - 1) // 2)
    width = (extent.last_at - extent.first_at) // num_stretches + 1
    stretch = ((metrics.c.at - extent.first_at) // width).label("stretch")
    statement = (
        select(
            func.min(metrics.c.at),
            func.max(metrics.c.at),
            func.min(metrics.c.value),
            func.max(metrics.c.value),
            func.max(metrics.c.step),
        )
        .where(*own)
        .group_by(stretch)
        .order_by(stretch)
    )
    points: list[CurvePoint] = []
    for first_at, last_at, least, greatest, step in connection.execute(statement):
        before, after = _as_they_go(points, least, greatest)
        points.append(CurvePoint(first_at // _PER_MS, before, step))
        if greatest != least:
            points.append(CurvePoint(last_at // _PER_MS, after, step))
    newest = select(metrics.c.at, metrics.c.value, metrics.c.step).where(*own)
    newest = newest.order_by(metrics.c.at.desc(), metrics.c.id.desc()).limit(1)
    at, value, step = connection.execute(newest).one()  # what a chart says of now is the last value itself
    return [*points, CurvePoint(at // _PER_MS, value, step)][-num_points:]


def _as_they_go(
    points: Sequence[CurvePoint], least: float | None, greatest: float | None
) -> tuple[float | None, float | None]:
    """Return the two in the order in which the curve most likely passes them: first what is nearer to where it is."""
    here = points[-1].value if points else None
    if here is None or least is None or greatest is None or abs(here - least) <= abs(here - greatest):
        return least, greatest
    return greatest, least
