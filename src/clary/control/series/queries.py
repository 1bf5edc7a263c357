"""Queries of series: the choice of blocks that answer a query, and the resulting points. Pure.

Where: CloudWatch's operations, `clary metrics` and the console send queries; `store.series_blocks` reads the chosen
blocks.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from clary.base.errors import ContractError, Fault
from clary.control.series.rollups import fold
from clary.control.series.tables import SeriesTable, between

ROWS_MS = 0  # the step of rows that are not rolled up
FINE_MS, COARSE_MS = 10_000, 300_000
STEPS_MS = (ROWS_MS, FINE_MS, COARSE_MS)
MAX_POINTS = 100_000  # points of one answer, all series together
MAX_PATTERN = 200  # characters
MAX_WILDCARDS = 12  # of a pattern
_OWNER = re.compile(r"[a-zA-Z0-9-]{1,63}")
# a query's step may begin or end within a roll-up if it is at least this many times as long as the roll-up
_MISFIT = 10
_PATTERN = re.compile(r"[a-z0-9_/*?,-]*")


@dataclass(frozen=True, kw_only=True)
class SeriesQuery:
    """A query of series.

    Attributes:
        job_name: job of the hosts.
        host: one of these hosts; None for all.
        names: patterns with `*` and `?`, separated by commas.
        start_ms, end_ms: span of time, its end exclusive, in milliseconds since 1970.
        step_ms: milliseconds between points; their times are multiples of it.
        attempt: only points of this attempt; None for all.

    Raises: ContractError for an invalid query.
    """

    job_name: str
    start_ms: int
    end_ms: int
    step_ms: int
    host: str | None = None
    names: str = "*"
    attempt: int | None = None

    def __post_init__(self) -> None:
        if self.step_ms < 1:
            raise ContractError(f"a step has at least 1 ms, got {self.step_ms}", fault=Fault.USER)
        if self.start_ms >= self.end_ms:
            raise ContractError(f"expected start before end, got {self.start_ms} and {self.end_ms}", fault=Fault.USER)
        num_steps = (self.end_ms - self.start_ms) // self.step_ms
        if num_steps > MAX_POINTS:
            raise ContractError(
                f"{num_steps} points of a series were asked for, expected at most {MAX_POINTS}: ask for a shorter "
                "time or a longer step",
                fault=Fault.USER,
            )
        for owner in (self.job_name, self.host):
            if owner is not None and not _OWNER.fullmatch(owner):
                raise ContractError(f"{owner[:80]!a} is no name of a job or a host, such as algo-1", fault=Fault.USER)
        wildcards = self.names.count("*") + self.names.count("?")
        if len(self.names) > MAX_PATTERN or wildcards > MAX_WILDCARDS or not _PATTERN.fullmatch(self.names):
            raise ContractError(
                f"names are patterns like rank-*/cpu_percent,host/* of at most {MAX_PATTERN} characters and "
                f"{MAX_WILDCARDS} wildcards, got {self.names[:MAX_PATTERN]!a}",
                fault=Fault.USER,
            )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(fnmatch.translate(pattern) for pattern in self.names.split(",") if pattern))

    def wants(self, name: str) -> bool:
        """Whether the query includes a series."""
        return self._pattern.fullmatch(name) is not None

    @property
    def level_ms(self) -> int:
        """The coarsest stored step that is fine enough for the query."""
        return max(step for step in STEPS_MS if not step or self._is_fine_enough(step))

    def _is_fine_enough(self, step_ms: int) -> bool:
        """Whether roll-ups of a step give the query's step exactly, or with bounds off by at most a tenth."""
        return (step_ms <= self.step_ms and not self.step_ms % step_ms) or step_ms * _MISFIT <= self.step_ms

    @property
    def first_ms(self) -> int:
        """The beginning of the first step."""
        return self.start_ms // self.step_ms * self.step_ms


@dataclass(frozen=True, kw_only=True)
class BlockFacts:
    """Summary of a block of one host in one attempt, known without reading the block."""

    number: int
    attempt: int
    host: str
    step_ms: int
    is_rolled: bool  # whether coarser blocks contain its values, too
    first_row: int  # number of the block's first row
    start_ms: int
    end_ms: int  # time of the block's last row


@dataclass(frozen=True, kw_only=True)
class BlockChoice:
    """A block to read, and the end of the part to use; finer blocks contain the later values."""

    block: BlockFacts
    until_ms: int


def choose(blocks: Sequence[BlockFacts], query: SeriesQuery) -> list[BlockChoice]:
    """Return the blocks that answer a query, each value once.

    These are blocks of the query's level, finer blocks that were not rolled up yet, and coarser blocks for the time
    before the first finer block.
    """
    choices: list[BlockChoice] = []
    for host in sorted({(block.host, block.attempt) for block in blocks}):
        own = [block for block in blocks if (block.host, block.attempt) == host]
        level = query.level_ms
        fine = [block for block in own if block.step_ms == level or (block.step_ms < level and not block.is_rolled)]
        cut_ms = min((block.start_ms for block in fine), default=query.end_ms)
        choices += [BlockChoice(block=block, until_ms=query.end_ms) for block in fine]
        for step_ms in (step for step in STEPS_MS if step > level):
            until_ms = cut_ms // step_ms * step_ms
            if until_ms <= query.first_ms:
                break
            coarse = [block for block in own if block.step_ms == step_ms and block.start_ms < until_ms]
            choices += [BlockChoice(block=block, until_ms=until_ms) for block in coarse]
            cut_ms = min((block.start_ms for block in coarse), default=cut_ms)
    return sorted(choices, key=lambda choice: (choice.block.host, choice.block.attempt, choice.block.first_row))


@dataclass(frozen=True, slots=True)
class Point:
    """Aggregate of one series in one step."""

    at_ms: int  # start of the step
    least: float
    greatest: float
    mean: float
    count: float
    last: float

    def merged(self, later: Point) -> Point:
        """Return the aggregate of both points."""
        count = self.count + later.count
        return Point(
            self.at_ms,
            min(self.least, later.least),
            max(self.greatest, later.greatest),
            (self.mean * self.count + later.mean * later.count) / count,
            count,
            later.last,
        )


@dataclass(frozen=True, kw_only=True)
class Series:
    """The points of one series of one host, oldest first; steps without values are omitted."""

    host: str
    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class SeriesAnswer:
    """Result of a query."""

    series: tuple[Series, ...]
    num_dropped: int = 0  # number of rows that the job's agents have dropped
    damaged: tuple[str, ...] = field(default=())  # sentences on blocks that could not be read


class PointGatherer:
    """Turns tables into points."""

    def __init__(self, query: SeriesQuery) -> None:
        self._query = query
        self._points: dict[tuple[str, str], dict[int, Point]] = {}
        self._num_points = 0

    def add(self, host: str, table: SeriesTable, *, until_ms: int) -> None:
        """Add the query's part of a table; tables of a host must be added in the order of their rows.

        Args:
            host: host that measured the rows.
            table: rows or roll-ups, by time.
            until_ms: rows from this time on, in ms since 1970, are ignored, because finer tables contain them.
        Raises: ContractError if the answer would be too long.
        """
        # The first step is complete: it includes its values before the query's start.
        piece = between(table, self._query.first_ms, min(until_ms, self._query.end_ms))
        roll_ups = fold(piece, self._query.step_ms)
        for name, parts in roll_ups.columns.items():
            points = self._points.setdefault((host, name), {})
            for at_ms, least, greatest, mean, count, last in zip(roll_ups.at_ms, *parts, strict=True):
                if count:
                    point = Point(at_ms, least, greatest, mean, count, last)
                    known = points.get(at_ms)
                    points[at_ms] = point if known is None else known.merged(point)
                    self._num_points += known is None
        if self._num_points > MAX_POINTS:
            raise ContractError(
                f"the answer has more than {MAX_POINTS} points: ask for fewer series, a shorter time or a longer step",
                fault=Fault.USER,
            )

    def result(self) -> tuple[Series, ...]:
        """Return the series that have points, sorted by host and name."""
        return tuple(
            Series(host=host, name=name, points=tuple(points[at_ms] for at_ms in sorted(points)))
            for (host, name), points in sorted(self._points.items(), key=lambda item: natural_key(item[0]))
            if points
        )


def natural_key(texts: Iterable[str]) -> list[list[tuple[int, str]]]:
    """Return a sort key that puts algo-2 before algo-10."""
    return [[(int(digits or 0), word) for digits, word in re.findall(r"([0-9]+)|([^0-9]+)", text)] for text in texts]
