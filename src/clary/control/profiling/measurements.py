"""The input of profiler rules: series of a job while its program ran, by host, GPU and rank.

Where: the service reads series into this (`reconcile.job_measurements`); rules and the report query it. The times at
which programs ran are cached, and an unmeasured series is an empty tuple.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from clary.contract.agent_protocol import HostPhase
from clary.control.profiling.quantiles import after_patience
from clary.control.series.queries import Point, Series, natural_key

NAMES = (
    "host/*,machine/cpu_iowait_percent,gpu-*/*_percent,gpu-*/power_w,rank-*/cpu_percent,rank-*/memory_bytes,"
    "rank-*/num_processes,rank-*/*_s,rank-*/steps"
)
# Series of `NAMES` that are read by the rules that can fire; they are read repeatedly while a job runs.
JUDGED_NAMES = (
    "host/phase,host/cpu_percent,machine/cpu_iowait_percent,gpu-*/utilisation_percent,gpu-*/memory_percent,"
    "rank-*/step_s,rank-*/step_max_s,rank-*/steps,rank-*/data_wait_s,rank-*/num_processes"
)
PERCENT = 100.0
MOST_VALUE = 1e15  # of any series: a larger value is a program's mistake or an attack
MS_PER_S = 1000
_RUNNING = list(HostPhase).index(HostPhase.RUNNING)
_SCOPE = re.compile(r"(gpu|rank)-([0-9]{1,6})/")


@dataclass(frozen=True, kw_only=True)
class HostShape:
    """The processors and GPUs of a host."""

    name: str
    num_cpus: float
    num_gpus: int = 0


@dataclass(frozen=True)
class Scope:
    """A GPU or a rank of a host."""

    host: str
    number: int
    kind: str  # gpu or rank

    @property
    def label(self) -> str:
        """Readable name: `algo-1 gpu-0`."""
        return f"{self.host} {self.kind}-{self.number}"


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Points by host and name of a series, oldest first.

    Attributes:
        hosts: in the order of their names.
        series: (host, name) -> points at multiples of `step_ms`; `Point.count` is the number of rows in a point.
        step_ms: milliseconds between points.
        until_ms: now, or the job's end.
        breaks_ms: ends of attempts that ended early, oldest first.
        is_over: whether no more points will arrive.
    """

    hosts: tuple[HostShape, ...]
    series: Mapping[tuple[str, str], tuple[Point, ...]] = field(default_factory=dict)
    step_ms: int = 1
    until_ms: int = 0
    breaks_ms: tuple[int, ...] = ()
    is_over: bool = False

    def all_points(self, host: str, name: str) -> tuple[Point, ...]:
        """Return all points of a series, also from the host's preparation and uploads."""
        return self.series.get((host, name), ())

    def points(self, host: str, name: str) -> tuple[Point, ...]:
        """Return the points of a series while the host's program ran; all points if the host has no `host/phase`."""
        ran = self._ran.get(host)
        found = self.all_points(host, name)
        return found if ran is None else tuple(point for point in found if point.at_ms in ran)

    def scopes(self, kind: str, quantity: str) -> list[Scope]:
        """Return the GPUs or ranks with measurements of a quantity, in order."""
        found = []
        for host, name in sorted(self.series, key=natural_key):
            match = _SCOPE.match(name)
            if match is not None and match[1] == kind and name == f"{kind}-{match[2]}/{quantity}":
                found.append(Scope(host, int(match[2]), kind))
        return found

    def of(self, scope: Scope, quantity: str) -> tuple[Point, ...]:
        """Return the points of a quantity of a GPU or rank while the program ran."""
        return self.points(scope.host, f"{scope.kind}-{scope.number}/{quantity}")

    def cpu_share(self, host: str) -> tuple[Point, ...]:
        """Return the load of a host's processors in percent of all its processors together."""
        return self._shares(self.points(host, "host/cpu_percent"), host)

    def io_wait_share(self, host: str) -> tuple[Point, ...]:
        """Return the machine's I/O wait, in percent of a host's processors."""
        return self._shares(self.points(host, "machine/cpu_iowait_percent"), host)

    def attempt_of(self, at_ms: int) -> int:
        """Return the number of the attempt that contains a moment, from 0."""
        return bisect_right(self.breaks_ms, at_ms)

    def by_attempt(self, points: Iterable[Point]) -> list[tuple[Point, ...]]:
        """Group points by attempt; attempts without points are omitted."""
        found: dict[int, list[Point]] = {}
        for point in points:
            found.setdefault(self.attempt_of(point.at_ms), []).append(point)
        return [tuple(own) for _, own in sorted(found.items())]

    def after_patience(self, points: Iterable[Point], patience: float) -> tuple[Point, ...]:
        """Return points without the first `patience` rows of each attempt, because each attempt warms up anew."""
        return tuple(point for own in self.by_attempt(points) for point in after_patience(own, patience))

    @cached_property
    def began_ms(self) -> int | None:
        """The time at which the first host's program began to run, in ms since 1970; None if no program ran."""
        return min((begin_ms for begin_ms, _ in self.runs_ms.values()), default=None)

    @cached_property
    def runs_ms(self) -> Mapping[int, tuple[int, int]]:
        """Attempt -> first and last time at which its program ran; attempts without a running program are omitted."""
        ran: dict[int, list[int]] = {}
        for at_ms in frozenset[int]().union(*self._ran.values()):
            ran.setdefault(self.attempt_of(at_ms), []).append(at_ms)
        return {attempt: (min(moments), max(moments)) for attempt, moments in sorted(ran.items())}

    def _shares(self, points: Iterable[Point], host: str) -> tuple[Point, ...]:
        num_cpus = next((shape.num_cpus for shape in self.hosts if shape.name == host), 1.0)
        return tuple(_scaled(point, 1 / max(num_cpus, 0.01)) for point in points)

    @cached_property
    def _ran(self) -> dict[str, frozenset[int]]:
        """Host -> times (ms) of the points at which its program ran; hosts without series `host/phase` are omitted."""
        return {
            host: frozenset(point.at_ms for point in points if round(point.mean) == _RUNNING)
            for (host, name), points in self.series.items()
            if name == "host/phase"
        }


def measurements_of(
    series: Iterable[Series],
    hosts: Iterable[HostShape],
    *,
    step_ms: int,
    until_ms: int,
    is_over: bool,
    breaks_ms: Iterable[int] = (),
) -> Measurements:
    """Convert series of the store into the input of rules; points with impossible values are omitted.

    Args:
        series: points of each host, oldest first.
        hosts: hosts of the job, in any order.
        step_ms: milliseconds between points.
        until_ms: now, or the job's end, in ms since 1970.
        is_over: whether no more points will arrive.
        breaks_ms: ends of attempts that ended early, in ms since 1970, oldest first.
    """
    usable = ((one.host, one.name, tuple(point for point in one.points if _can_be(point))) for one in series)
    return Measurements(
        hosts=tuple(sorted(hosts, key=lambda host: natural_key([host.name]))),
        series={(host, name): points for host, name, points in usable if points},
        step_ms=step_ms,
        until_ms=until_ms,
        breaks_ms=tuple(breaks_ms),
        is_over=is_over,
    )


def _can_be(point: Point) -> bool:
    return (  # NaN is not below any number, so it is dropped, too
        abs(point.mean) < MOST_VALUE
        and abs(point.least) < MOST_VALUE
        and abs(point.greatest) < MOST_VALUE
        and abs(point.last) < MOST_VALUE
    )


def _scaled(point: Point, factor: float) -> Point:
    values = (min(PERCENT, value * factor) for value in (point.least, point.greatest, point.mean))
    least, greatest, mean = values
    return Point(point.at_ms, least, greatest, mean, point.count, min(PERCENT, point.last * factor))
