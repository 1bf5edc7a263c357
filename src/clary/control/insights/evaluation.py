"""Evaluation of a plan over lines: keeps rows or groups in bounded memory, and returns the rows of the answer.

Where: `services.query_desk` passes every line of the time range to it, in slices and from a thread, then reads the
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clary.control.insights.errors import QueryTooLarge
from clary.control.insights.lines import LogLine
from clary.control.insights.planning import Column, Counting, Group, Plan
from clary.control.insights.values import Value, number_of, sort_key, text_of, time_text

MAX_RESULT_CHARACTERS = 8 << 20
MAX_GROUPS = 10_000
MAX_DISTINCT = 100_000  # values that count_distinct stores, over all groups
_SPARE_ROWS = 1_000  # rows above twice the limit that are collected before the last rows in the order are dropped
_CELL_CHARACTERS = 40  # approximate cost of a cell besides its text

Row = tuple[tuple[str, str], ...]  # pairs of column name and value
Key = tuple[int, float, str]


@dataclass(frozen=True)
class _Kept:
    # Only the data of the row, not its line: messages are long, and objects parsed from them are larger.
    kept_keys: tuple[Key, ...]
    shown_keys: tuple[Key, ...]
    cells: Row
    size: int


class Evaluation:
    """One run of a plan.

    Call `take` for each line, then `rows` once.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._collector: _Groups | _Rows = _collector(plan)
        self.num_scanned = 0
        self.num_matched = 0
        self.scanned_bytes = 0

    def take(self, line: LogLine, *, size_bytes: int) -> None:
        """Evaluate one line.

        Raises: QueryTooLarge.
        """
        self.num_scanned += 1
        self.scanned_bytes += size_bytes
        for keeps in self._plan.keeps:
            if not keeps(line):
                return
        self.num_matched += 1
        self._collector.take(line)

    def rows(self) -> list[Row]:
        """Return the rows of the answer.

        Raises: QueryTooLarge.
        """
        return self._collector.rows()

    def drop(self) -> None:
        """Drop rows and groups, but keep the counters."""
        self._collector = _collector(self._plan)


def _collector(plan: Plan) -> _Groups | _Rows:
    return _Groups(plan) if plan.aggregates else _Rows(plan)


class _Rows:
    """The first lines in the sort order, as rows."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kept: list[_Kept] = []
        self._size = 0

    def take(self, line: LogLine) -> None:
        plan = self._plan
        cells = tuple(_cells(line, plan.columns))
        kept_keys = tuple(sort_key(order.read(line)) for order in plan.kept_order)
        is_same = plan.shown_order is plan.kept_order
        shown_keys = kept_keys if is_same else tuple(sort_key(order.read(line)) for order in plan.shown_order)
        size = sum(_size(text) for _, text in cells) + sum(len(key[2]) for key in (*kept_keys, *shown_keys))
        self._kept.append(_Kept(kept_keys, shown_keys, cells, size))
        self._size += size
        if len(self._kept) >= 2 * plan.limit + _SPARE_ROWS or self._size > 2 * MAX_RESULT_CHARACTERS:
            self._drop()

    def rows(self) -> list[Row]:
        self._drop()
        if self._plan.shown_order is not self._plan.kept_order:
            for number, order in reversed(list(enumerate(self._plan.shown_order))):
                self._kept.sort(key=_nth_shown(number), reverse=order.is_descending)
        return [kept.cells for kept in self._kept]

    def _drop(self) -> None:
        for number, order in reversed(list(enumerate(self._plan.kept_order))):
            self._kept.sort(key=_nth_kept(number), reverse=order.is_descending)
        del self._kept[self._plan.limit :]
        self._size = sum(kept.size for kept in self._kept)
        if self._size > MAX_RESULT_CHARACTERS:
            raise QueryTooLarge(
                f"the result has more than {MAX_RESULT_CHARACTERS} characters with {len(self._kept)} rows: ask for "
                f"fewer rows with 'limit', or for fewer fields"
            )


class _Groups:
    """Groups of lines, as rows."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._groups: dict[tuple[Value, ...], list[_Aggregate]] = {}
        self._size = 0
        self._distinct = _Budget(MAX_DISTINCT)
        if not plan.columns:
            self._groups[()] = self._aggregates()

    def take(self, line: LogLine) -> None:
        key = tuple(column.read(line) for column in self._plan.columns)
        aggregates = self._groups.get(key)
        if aggregates is None:
            self._size += sum(map(_size, key))
            if len(self._groups) >= MAX_GROUPS or self._size > MAX_RESULT_CHARACTERS:
                raise QueryTooLarge(
                    f"'stats' makes more than {MAX_GROUPS} groups or {MAX_RESULT_CHARACTERS} characters: group by "
                    f"something with fewer values, or by longer periods"
                )
            aggregates = self._groups[key] = self._aggregates()
        for aggregate in aggregates:
            aggregate.take(line)

    def rows(self) -> list[Row]:
        plan = self._plan
        times = {column.label for column in plan.columns if column.is_time}
        # Without a sort: times from new to old, as for lines; other values from small to large.
        keys = list(self._groups)
        for number, column in reversed(list(enumerate(plan.columns))):
            keys.sort(key=_nth_value(number), reverse=column.is_time)
        groups: list[Group] = []
        for key in keys:
            group: Group = {column.label: value for column, value in zip(plan.columns, key, strict=True)}
            group.update((each.counting.label, each.value()) for each in self._groups[key])
            groups.append(group)
        for stage in plan.stages:
            groups = stage(groups)
        return [
            tuple(
                (label, _text(value, is_time=label in times))
                for label in plan.shown
                if (value := group[label]) is not None
            )
            for group in groups
        ]

    def _aggregates(self) -> list[_Aggregate]:
        return [_Aggregate(counting, self._distinct) for counting in self._plan.aggregates]


class _Budget:
    """Budget of count_distinct, shared by all groups."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, amount: int = 1) -> None:
        self.left -= amount
        if self.left < 0:
            raise QueryTooLarge(
                f"count_distinct met more than {MAX_DISTINCT} values: group by fewer fields, or put a filter "
                "in front of it"
            )


class _Aggregate:
    """One aggregate of one group."""

    def __init__(self, counting: Counting, distinct: _Budget) -> None:
        self.counting = counting
        self._distinct = distinct
        self._count = 0
        self._sum: float = 0
        self._least: float | None = None
        self._most: float | None = None
        self._seen: set[str] = set()

    def take(self, line: LogLine) -> None:
        if self.counting.read is None:
            self._count += 1
            return
        value = self.counting.read(line)
        if value is None:
            return
        if self.counting.function == "count":
            self._count += 1
        elif self.counting.function == "count_distinct":
            self._see(text_of(value))
        elif (number := number_of(value)) is not None:
            self._count += 1
            self._sum += number
            self._least = number if self._least is None else min(self._least, number)
            self._most = number if self._most is None else max(self._most, number)

    def value(self) -> Value:
        match self.counting.function:
            case "count":
                return self._count
            case "count_distinct":
                return len(self._seen)
            case "sum":
                return self._sum if self._count else None
            case "avg":
                return self._sum / self._count if self._count else None
            case "min":
                return self._least
            case _:
                return self._most

    def _see(self, text: str) -> None:
        if text not in self._seen:
            self._distinct.spend(1 + len(text) // 100)  # a long text counts as several values
            self._seen.add(text)


def _cells(line: LogLine, columns: tuple[Column, ...]) -> list[tuple[str, str]]:
    return [
        (column.label, _text(value, is_time=column.is_time))
        for column in columns
        if (value := column.read(line)) is not None
    ]


def _text(value: str | float, *, is_time: bool) -> str:
    return time_text(int(value)) if is_time and not isinstance(value, str) else text_of(value)


def _size(value: Value) -> int:
    return _CELL_CHARACTERS + (len(value) if isinstance(value, str) else 0)


def _nth_kept(number: int) -> Callable[[_Kept], Key]:
    return lambda kept: kept.kept_keys[number]


def _nth_shown(number: int) -> Callable[[_Kept], Key]:
    return lambda kept: kept.shown_keys[number]


def _nth_value(number: int) -> Callable[[tuple[Value, ...]], Key]:
    return lambda key: sort_key(key[number])
