"""Turns commands into a plan: the conditions on lines, the rows made of lines, their order and their limit.

Filters before `limit` and `stats` apply to lines, even if they follow a `sort`: filtering a sorted list has the same
result as sorting a filtered list. After `stats`, each command in turn transforms the rows of `stats`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from clary.control.insights import syntax
from clary.control.insights.conditions import Holds, holds
from clary.control.insights.errors import MalformedQuery
from clary.control.insights.lines import Getter, LogLine, getter_of, is_time
from clary.control.insights.reading import MAX_ROWS, commands_of
from clary.control.insights.syntax import Bin, Field, Item, Place
from clary.control.insights.values import Value, sort_key

DEFAULT_FIELDS = ("@timestamp", "@message")
POINTER = "@ptr"
_NOWHERE = Place(0, 0)

R = TypeVar("R")
Group = dict[str, Value]  # a row of stats: column name -> value


@dataclass(frozen=True)
class Column:
    """A column of the result: a value read from each row's line."""

    label: str
    read: Getter
    is_time: bool


@dataclass(frozen=True)
class Order:
    """One key to sort by."""

    read: Getter
    is_descending: bool


@dataclass(frozen=True)
class Counting:
    """One aggregate function of `stats`."""

    function: str
    read: Getter | None  # None counts every line
    label: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps of a query: steps for each line, and steps after the last line.

    Args:
        keeps: conditions that lines have to meet.
        columns: columns of the rows; for stats, the values by which lines are grouped.
        kept_order: order that decides which rows are kept if there are more than `limit`.
        shown_order: order of the result.
        limit: largest number of rows that are lines; `stages` limit rows of stats.
        aggregates: aggregates of stats; empty if rows are lines.
        stages: functions that transform the rows of stats, one after the other.
        shown: labels of stats' columns that are shown, in order.
    """

    keeps: tuple[Holds[LogLine], ...]
    columns: tuple[Column, ...]
    kept_order: tuple[Order, ...] = ()
    shown_order: tuple[Order, ...] = ()
    limit: int = MAX_ROWS
    aggregates: tuple[Counting, ...] = ()
    stages: tuple[Callable[[list[Group]], list[Group]], ...] = ()
    shown: tuple[str, ...] = ()


def plan_of(text: str, *, limit: int | None = None) -> Plan:
    """Return the plan of a query.

    Args:
        text: the query.
        limit: largest number of rows, in addition to the query's own limit.

    Raises: MalformedQuery.
    """
    commands = commands_of(text)
    for number, command in enumerate(commands):
        if isinstance(command, syntax.Stats):
            lines = _LineCommands()
            for before in commands[:number]:
                if isinstance(before, syntax.Limit | syntax.Display):
                    raise _misplaced(before, "in front of 'stats'", "put it behind")
                lines.take(before)
            return _stats_plan(lines, command, commands[number + 1 :], limit=limit)
    lines = _LineCommands()
    for command in commands:
        lines.take(command)
    return lines.plan(limit=limit)


@dataclass
class _LineCommands:
    """Combined effect of the commands on lines, built one command after the other."""

    aliases: dict[str, Field | Bin] = field(default_factory=dict)
    keeps: list[Holds[LogLine]] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    displayed: tuple[Item, ...] | None = None
    kept_order: tuple[Order, ...] | None = None
    shown_order: tuple[Order, ...] | None = None
    limit: int | None = None

    def take(self, command: syntax.Command) -> None:
        match command:
            case syntax.Fields(items):
                self.items += self._named(items)
            case syntax.Display(items):
                self.displayed = tuple(self._named(items))
            case syntax.Filter(condition):
                if self.limit is not None:
                    raise _misplaced(command, "behind 'limit'", "put it in front")
                self.keeps.append(holds(condition, self.getter))
            case syntax.Sort(keys):
                order = _order(keys, self.getter, self.resolve)
                if self.limit is None:
                    self.kept_order = order
                else:
                    self.shown_order = order
            case syntax.Limit(count):
                self.limit = count if self.limit is None else min(self.limit, count)
            case _:
                raise _misplaced(command, "behind another one", "a query has one 'stats'")

    def plan(self, *, limit: int | None) -> Plan:
        default = [Item(Field(name, _NOWHERE), name) for name in DEFAULT_FIELDS]
        items = self.displayed if self.displayed is not None else (self.items or default)
        pointer = Item(Field(POINTER, _NOWHERE), POINTER)
        newest_first = (Order(lambda line: line.at_ms, True), Order(lambda line: line.sequence, True))
        kept_order = self.kept_order or newest_first
        return Plan(
            keeps=tuple(self.keeps),
            columns=self.columns([*items, pointer]),
            kept_order=kept_order,
            shown_order=self.shown_order or kept_order,
            limit=min(self.limit or MAX_ROWS, limit or MAX_ROWS),
        )

    def columns(self, items: Sequence[Item]) -> tuple[Column, ...]:
        columns = {
            item.label: Column(item.label, self.getter(item.source), is_time(self.resolve(item.source)))
            for item in items
        }
        return tuple(columns.values())

    def resolve(self, source: Field | Bin) -> Field | Bin:
        return self.aliases.get(source.name, source) if isinstance(source, Field) else source

    def getter(self, source: Field | Bin) -> Getter:
        return getter_of(self.resolve(source))

    def _named(self, items: tuple[Item, ...]) -> list[Item]:
        for item in items:
            self.getter(item.source)  # raises MalformedQuery for a field that lines do not have
            if item.label != item.source.label or isinstance(item.source, Bin):
                self.aliases[item.label] = self.resolve(item.source)
        return list(items)


def _order(
    keys: tuple[syntax.SortKey, ...],
    getter: Callable[[Field | Bin], Getter],
    resolve: Callable[[Field | Bin], Field | Bin],
) -> tuple[Order, ...]:
    order = [Order(getter(key.source), key.is_descending) for key in keys]
    last = resolve(keys[-1].source)
    if isinstance(last, Field) and last.name == "@timestamp":
        # Lines of the same millisecond are ordered by their sequence, in the direction of the sort.
        order.append(Order(lambda line: line.sequence, keys[-1].is_descending))
    return tuple(order)


def _stats_plan(
    lines: _LineCommands, stats: syntax.Stats, behind: Sequence[syntax.Command], *, limit: int | None
) -> Plan:
    columns = lines.columns(stats.groups)
    aggregates = tuple(
        Counting(each.function, None if each.field is None else lines.getter(each.field), each.label)
        for each in stats.aggregates
    )
    labels = [column.label for column in columns] + [each.label for each in aggregates]
    if len(set(labels)) < len(labels):
        raise MalformedQuery(
            "two columns of 'stats' have the same name: rename one of them with 'as'",
            start=stats.place.start,
            end=stats.place.end,
        )
    stages: list[Callable[[list[Group]], list[Group]]] = []
    shown = tuple(labels)
    for command in behind:
        match command:
            case syntax.Filter(condition):
                stages.append(_filter_stage(holds(condition, _group_getter(labels))))
            case syntax.Sort(keys):
                stages.append(_sort_stage(keys, labels))
            case syntax.Limit(count):
                stages.append(_limit_stage(count))
            case syntax.Display(items):
                for item in items:
                    _group_getter(labels)(item.source)
                    if item.label != item.source.label:
                        raise _misplaced(command, "with 'as' behind 'stats'", "name columns within 'stats'")
                shown = tuple(dict.fromkeys(item.source.label for item in items))
            case syntax.Stats():
                raise _misplaced(command, "behind another one", "a query has one 'stats'")
            case _:
                raise _misplaced(command, "behind 'stats'", "choose columns with 'display'")
    if limit is not None:
        stages.append(_limit_stage(limit))
    return Plan(keeps=tuple(lines.keeps), columns=columns, aggregates=aggregates, stages=tuple(stages), shown=shown)


def _group_getter(labels: Sequence[str]) -> Callable[[Field | Bin], Callable[[Group], Value]]:
    def getter(source: Field | Bin) -> Callable[[Group], Value]:
        label = source.label
        if label not in labels:
            raise MalformedQuery(
                f"unknown column {label[:80]!r}: the columns after 'stats' are {', '.join(labels)[:500]}",
                start=source.place.start,
                end=source.place.end,
            )
        return lambda group: group.get(label)

    return getter


def _filter_stage(keeps: Holds[Group]) -> Callable[[list[Group]], list[Group]]:
    return lambda groups: [group for group in groups if keeps(group)]


def _limit_stage(count: int) -> Callable[[list[Group]], list[Group]]:
    return lambda groups: groups[:count]


def _sort_stage(keys: tuple[syntax.SortKey, ...], labels: Sequence[str]) -> Callable[[list[Group]], list[Group]]:
    reads = [(_group_getter(labels)(key.source), key.is_descending) for key in keys]

    def sort(groups: list[Group]) -> list[Group]:
        for read, is_descending in reversed(reads):
            groups = sorted(groups, key=lambda group: sort_key(read(group)), reverse=is_descending)
        return groups

    return sort


def _misplaced(command: syntax.Command, where: str, advice: str) -> MalformedQuery:
    name = type(command).__name__.lower()
    return MalformedQuery(
        f"{name!r} {where} is not offered here: {advice}", start=command.place.start, end=command.place.end
    )
