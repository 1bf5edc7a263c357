"""Metrics of a job as curves of few points, thinned out by the database.

Where: `Store.curves`, for the console's charts and its comparison of jobs. All values are in the table of metrics. The
time of a metric with more values than requested is cut into stretches of equal length; each stretch contributes its
least and its greatest value, so that a chart shows every spike, however short.

The chart of a running job requests its curves every few seconds. Stretches begin at multiples of their length, and few
lengths are possible, so that a growing curve keeps its stretches: they are cached in memory, and only new values are
read. Values never change; if their number is unexpected (another job may have the same name by now), all values are
read anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from clary.control.store.series_blocks import Runner
from clary.control.store.tables import metrics

MAX_POINTS = 5000  # most points of one curve
MAX_CURVES = 100  # most curves of one answer
MAX_KEPT = 100_000  # cached stretches of all curves, some twenty megabytes
_PER_MS = 1000  # microseconds
_FOURTHS = (4, 5, 6, 7)  # lengths in fourths of a power of two; neighbouring lengths differ by at most a fourth
_FOURTHS_BITS = 3


class CurvePoint(NamedTuple):
    """A value; None stands for NaN."""

    at_ms: int
    value: float | None
    step: int | None


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """Number, times and last id of the stored values; times are microseconds."""

    count: int
    first_at: int
    last_at: int
    last_id: int


class _Stretch(NamedTuple):
    """Summary of the values in a stretch of time."""

    first_at: int
    last_at: int
    least: float | None
    greatest: float | None
    step: int | None
    num_values: int
    last_id: int


class _Cut(NamedTuple):
    """A metric, and the length of its stretches in microseconds."""

    job_name: str
    metric_name: str
    width: int


_Stretches = Mapping[int, _Stretch]  # number -> stretch; stretch 0 begins in 1970


class MetricCurves:
    """Reads curves from the database."""

    def __init__(self, *, read: Runner) -> None:
        self._read = read
        self._lock = threading.Lock()  # several threads read curves
        self._kept: OrderedDict[_Cut, _Stretches] = OrderedDict()  # most recently used last
        self._num_kept = 0

    async def names(self, job_name: str, *, prefix: str) -> list[str]:
        """Return the names of all metrics of a job that begin with a text, sorted.

        Args:
            job_name: job of the metrics.
            prefix: empty, or a text that ends with an ASCII character.
        """
        return await self._read(lambda connection: names_of(connection, job_name, prefix=prefix))

    async def curves(
        self, job_name: str, *, names: Sequence[str] | None, num_points: int
    ) -> Mapping[str, list[CurvePoint]]:
        """Return curves by name, oldest point first.

        Args:
            job_name: job of the metrics.
            names: names of metrics; missing metrics are left out; None for all metrics. At most MAX_CURVES are read.
            num_points: maximum number of points of each curve, 2 to MAX_POINTS.
        """
        most = max(2, min(num_points, MAX_POINTS))

        def find(connection: Connection) -> dict[str, list[CurvePoint]]:
            extents = _extents(connection, job_name, names)
            return {name: self._curve(connection, job_name, name, extent, most) for name, extent in extents.items()}

        return await self._read(find)

    def _curve(
        self, connection: Connection, job_name: str, name: str, extent: _Extent, num_points: int
    ) -> list[CurvePoint]:
        own = (metrics.c.job_name == job_name, metrics.c.metric_name == name)
        values = select(metrics.c.at, metrics.c.value, metrics.c.step).where(*own)
        if extent.count <= num_points:
            rows = connection.execute(values.order_by(metrics.c.at, metrics.c.id))
            return [
                CurvePoint(at // _PER_MS, None if value is None else float(value), step) for at, value, step in rows
            ]
        cut = _Cut(job_name, name, _width_of(extent, max(1, (num_points - 1) // 2)))
        stretches = self._stretches(connection, cut, extent)
        points: list[CurvePoint] = []
        for number in sorted(stretches):
            one = stretches[number]
            before, after = _as_they_go(points, one.least, one.greatest)
            points.append(CurvePoint(one.first_at // _PER_MS, before, one.step))
            if one.greatest != one.least:
                points.append(CurvePoint(one.last_at // _PER_MS, after, one.step))
        newest = values.order_by(metrics.c.at.desc(), metrics.c.id.desc()).limit(1)
        for at, value, step in connection.execute(newest):  # a chart must end with the last value itself
            points.append(CurvePoint(at // _PER_MS, value, step))
        return points[-num_points:]

    def _stretches(self, connection: Connection, cut: _Cut, extent: _Extent) -> _Stretches:
        """Return the stretches of a metric; only new values are read."""
        with self._lock:
            known = self._kept.get(cut, {})
            if known:
                self._kept.move_to_end(cut)
        before = _extent_of(known)
        if before == extent:
            return known
        if before is not None and before.count < extent.count:
            known = _merged(known, _read_stretches(connection, cut, after_id=before.last_id))
        if _extent_of(known) != extent:
            known = _read_stretches(connection, cut, after_id=None)
        self._keep(cut, known)
        return known

    def _keep(self, cut: _Cut, stretches: _Stretches) -> None:
        if not stretches:  # the job was deleted during the read; an empty list would escape the bound on `_kept`
            return
        with self._lock:
            self._num_kept += len(stretches) - len(self._kept.pop(cut, ()))
            self._kept[cut] = stretches
            while self._num_kept > MAX_KEPT:
                _, oldest = self._kept.popitem(last=False)
                self._num_kept -= len(oldest)


def names_of(connection: Connection, job_name: str, *, prefix: str) -> list[str]:
    """Return the names of all metrics of a job that begin with a text, sorted.

    The index leads from each name to the next: the time depends on the number of names, not of values.

    Args:
        connection: of a reader.
        job_name: job of the metrics.
        prefix: empty, or a text that ends with an ASCII character.
    """
    name = metrics.c.metric_name
    within = [metrics.c.job_name == job_name, name >= prefix]
    if prefix:
        within.append(name < prefix[:-1] + chr(ord(prefix[-1]) + 1))  # names are ordered by code point
    found = select(func.min(name).label("name")).where(*within).cte("found", recursive=True)
    following = select(func.min(name)).where(*within, name > found.c.name).correlate(found).scalar_subquery()
    found = found.union_all(select(following).where(found.c.name.is_not(None)))
    return list(connection.execute(select(found.c.name).where(found.c.name.is_not(None))).scalars())


def _extents(connection: Connection, job_name: str, names: Sequence[str] | None) -> dict[str, _Extent]:
    at, number = metrics.c.at, metrics.c.id
    statement = (
        select(metrics.c.metric_name, func.count(), func.min(at), func.max(at), func.max(number))
        .where(metrics.c.job_name == job_name)
        .group_by(metrics.c.metric_name)
        .order_by(metrics.c.metric_name)
        .limit(MAX_CURVES)
    )
    if names is not None:
        statement = statement.where(metrics.c.metric_name.in_(list(names)))
    return {
        name: _Extent(count=count, first_at=first, last_at=last, last_id=last_id)
        for name, count, first, last, last_id in connection.execute(statement)
    }


def _width_of(extent: _Extent, num_stretches: int) -> int:
    """Return the shortest possible length that cuts a metric into at most `num_stretches` stretches."""
    shortest = (extent.last_at - extent.first_at) // num_stretches
    widths = (
        fourths << power for power in count_from(max(0, shortest.bit_length() - _FOURTHS_BITS)) for fourths in _FOURTHS
    )
    return next(
        width
        for width in widths
        if _number_of(extent.last_at, width) - _number_of(extent.first_at, width) < num_stretches
    )


def _number_of(at: int, width: int) -> int:
    """Return the number of a time's stretch; like databases, round towards zero, also before 1970."""
    return at // width if at >= 0 else -(-at // width)


def _read_stretches(connection: Connection, cut: _Cut, *, after_id: int | None) -> _Stretches:
    """Return the stretches of a metric's values, or only of its values with an id above `after_id`."""
    columns = metrics.c
    number = (columns.at // cut.width).label("number")
    statement = (
        select(
            number,
            func.min(columns.at),
            func.max(columns.at),
            func.min(columns.value),
            func.max(columns.value),
            func.max(columns.step),
            func.count(),
            func.max(columns.id),
        )
        .where(columns.job_name == cut.job_name, columns.metric_name == cut.metric_name)
        .group_by(number)
    )
    if after_id is not None:
        statement = statement.where(columns.id > after_id)
    return {row[0]: _Stretch(*row[1:]) for row in connection.execute(statement)}


def _merged(known: _Stretches, newer: _Stretches) -> _Stretches:
    merged = dict(known)
    for number, new in newer.items():
        old = merged.get(number)
        merged[number] = new if old is None else _both(old, new)
    return merged


def _both(old: _Stretch, new: _Stretch) -> _Stretch:
    return _Stretch(
        first_at=min(old.first_at, new.first_at),
        last_at=max(old.last_at, new.last_at),
        least=min(_known((old.least, new.least)), default=None),
        greatest=max(_known((old.greatest, new.greatest)), default=None),
        step=max((step for step in (old.step, new.step) if step is not None), default=None),
        num_values=old.num_values + new.num_values,
        last_id=max(old.last_id, new.last_id),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _extent_of(stretches: _Stretches) -> _Extent | None:
    if not stretches:
        return None
    all_of = stretches.values()
    return _Extent(
        count=sum(one.num_values for one in all_of),
        first_at=min(one.first_at for one in all_of),
        last_at=max(one.last_at for one in all_of),
        last_id=max(one.last_id for one in all_of),
    )


def _as_they_go(
    points: Sequence[CurvePoint], least: float | None, greatest: float | None
) -> tuple[float | None, float | None]:
    """Return a stretch's two values in the likely order of the curve: first the value nearer to the previous point."""
    here = points[-1].value if points else None
    if here is None or least is None or greatest is None or abs(here - least) <= abs(here - greatest):
        return least, greatest
    return greatest, least
