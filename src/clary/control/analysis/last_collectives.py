"""Finds ranks that are behind in a collective or called another collective than their peers, from their records. Pure.

Where: `autopsy` adds the result to the evidence of stacks. Each rank numbers the operations of a group by itself, so
that equal numbers mean the same operation. A rank without any record is never reported as behind. Sends and receives
are shown and not compared, and neither is a group whose numbers do not match: its ranks finished different operations
under one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clary.base.rank_lists import rank_text, spans_of
from clary.contract.stack_dumps import CollectiveCall, CollectiveGroup, HostDump

_HASH_CHARACTERS = 40  # torch names some groups by a digest of their ranks
_SHOWN_CHARACTERS = 12
_FINISHED = "finished"
_LOOKED_BACK = 16  # number of earlier operations that are compared; records hold fewer
# Backends whose operations have ended when a wait for them returns; with other backends, the operations are only queued
# by then.
_ENDED_WHEN_WAITED_FOR = frozenset({"gloo", "mpi", "smddp"})
# Operations that ranks may mix in one call: they are different names of the same operation.
_FAMILIES = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "all_gather_into_tensor_coalesced": "all_gather_coalesced",
}
# Operations to which all ranks contribute the same number of elements.
_EQUAL_COUNTS = frozenset({"all_reduce", "reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor"})
_JUST_NOW_S = 1.0  # processes are read one after the other, so ranks in step are found at different operations


@dataclass(frozen=True, kw_only=True)
class RankCall:
    """The last operation of one rank in a group.

    Attributes:
        rank: None if unknown.
        pid: process id; 0 for a process that has ended.
        call: the operation in which the rank waits, else its newest; None if it has not entered an operation.
        is_behind: whether other ranks of the group have entered more operations, and the rank entered none just now.
        differs: whether the rank called another operation than most ranks did under the same number.
    """

    host: str
    rank: int | None
    pid: int
    call: CollectiveCall | None
    is_behind: bool = False
    differs: bool = False


@dataclass(frozen=True, kw_only=True)
class GroupCalls:
    """One group of ranks with the last operation of each; `ranks` is empty if unknown."""

    name: str
    kind: str
    size: int
    ranks: str
    is_point_to_point: bool
    members: tuple[RankCall, ...]


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """Ranks that called different operations under one number.

    Attributes:
        odd: ranks that called another operation than most; empty without a majority.
    """

    odd: tuple[int, ...]
    words: str


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Combined result of the records of a job's ranks.

    Attributes:
        crossing: text on ranks that wait for each other in different groups; empty without such ranks.
        about: rank -> sentence on whether it has entered the operation in which other ranks wait, or on the last
            operation of an ended process.
        cleared: waiting ranks that no other rank waits for, while other ranks are waited for.
    """

    groups: tuple[GroupCalls, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    crossing: str = ""
    about: Mapping[int, str]
    cleared: frozenset[int] = frozenset()


_Key = tuple[str, str, int, str, bool]


class _Rank(NamedTuple):
    host: str
    rank: int | None
    pid: int
    groups: Mapping[_Key, CollectiveGroup]
    is_whole: bool  # whether all groups of the rank are recorded


class _Table:
    """One group, combined from the records of its known ranks.

    Attributes:
        entered: rank -> the highest number that it has entered, for ranks with a record; 0 for a rank whose complete
            record lacks the group.
        calls: rank -> number -> operation.
        held: rank -> the operation in which it waits.
    """

    def __init__(self, key: _Key, ranks: Sequence[_Rank], num_ranks: int) -> None:
        self.key = key
        name, _, size, spans, _ = key
        self.label = f"group {_shown(name)}"
        members = spans_of(spans) or ((range(num_ranks),) if size == num_ranks else ())
        self.entered: dict[int, int] = {}
        self.calls: dict[int, dict[int, CollectiveCall]] = {}
        self.held: dict[int, CollectiveCall] = {}
        for one in ranks:
            group = one.groups.get(key)
            rank = one.rank
            if rank is None or (group is None and not (one.is_whole and any(rank in span for span in members))):
                continue
            calls = group.calls if group is not None else ()
            self.calls[rank] = {call.number: call for call in calls}
            self.entered[rank] = max(self.calls[rank], default=0)
            held = [call for call in calls if call.is_held]
            if held and one.pid:
                self.held[rank] = held[0]
        self.front = max(self.entered.values(), default=0)
        self.floor = min(self.entered.values(), default=0)
        self.is_compared = not key[-1] and len(self.entered) > 1 and self._fits()

    def behind(self, number: int) -> list[int]:
        """Return the ranks that have not entered an operation."""
        return sorted(rank for rank, entered in self.entered.items() if entered < number)

    def at(self, number: int) -> dict[int, CollectiveCall]:
        """Return each rank's operation under a number, for the ranks whose records still hold it."""
        return {rank: calls[number] for rank, calls in self.calls.items() if number in calls}

    def signatures(self, number: int) -> dict[tuple[str, str, int], list[int]]:
        """Return call -> the ranks that made it under a number, the most common call first."""
        calls = self.at(number)
        # Elements are counted differently under each name of an operation.
        names = {call.operation for call in calls.values()}
        has_types = all(call.dtype for call in calls.values())  # otherwise the tensors of some rank were not recorded
        has_counts = has_types and len(names) == 1 and names <= _EQUAL_COUNTS
        found: dict[tuple[str, str, int], list[int]] = {}
        for rank, call in sorted(calls.items()):
            family = _family(call.operation)
            dtype = call.dtype if has_types and family != "barrier" else ""
            found.setdefault((family, dtype, call.count if has_counts else 0), []).append(rank)
        return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[1])))

    def has_ended_well(self, number: int) -> bool:
        """Whether an operation has ended on all ranks that record it: then differing calls blocked no rank.

        Known only for backends whose operations have ended when a wait for them returns.
        """
        return self.key[1] in _ENDED_WHEN_WAITED_FOR and all(
            call.state == _FINISHED for call in self.at(number).values()
        )

    def _fits(self) -> bool:
        """Whether equal numbers mean the same operations on all ranks, judged by operations that have finished."""
        for number in range(max(1, self.floor - _LOOKED_BACK), self.floor):
            ended = [call for call in self.at(number).values() if call.state == _FINISHED]
            if len({_family(call.operation) for call in ended}) > 1:
                return False
        return True


def count_collectives(dumps: Mapping[str, HostDump], *, num_ranks: int) -> Counted:
    """Compare the records of the ranks.

    Args:
        dumps: dumps by host.
        num_ranks: number of ranks of the job; 0 if unknown.
    """
    ranks = list(_ranks(dumps))
    keys = dict.fromkeys(key for one in ranks for key in one.groups)
    tables = [_Table(key, ranks, num_ranks) for key in keys]
    compared = [table for table in tables if table.is_compared]
    disagreements = {table.key: found for table in compared if (found := _disagreement(table)) is not None}
    # Groups with disagreements come first, then groups with the most waiting ranks.
    tables.sort(key=lambda table: (table.key not in disagreements, -len(table.held)))
    crossing = _crossing(compared)
    return Counted(
        groups=tuple(_group_calls(table, ranks, disagreements.get(table.key)) for table in tables),
        disagreements=tuple(disagreements.values()),
        crossing=_crossing_words(crossing),
        about=_about(compared, ranks),
        cleared=_cleared(compared, disagreements.values(), {rank for rank, _, _ in crossing}),
    )


def last_call_words(groups: Iterable[CollectiveGroup]) -> str:
    """Return a rank's last call in words: `all_reduce #40 of group 0, finished`; empty without a call."""
    newest = [(group.calls[0].age_s, group) for group in groups if group.calls]
    if not newest:
        return ""
    _, group = min(newest, key=lambda item: item[0])
    call = group.calls[0]
    return f"{_named(call)} of group {_shown(group.name)}, {call.state}"


def rank_words(ranks: Sequence[int]) -> str:
    """Return `rank 3`, `ranks 0, 2` or `ranks 0-7`."""
    text = rank_text(ranks).replace(",", ", ")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def _ranks(dumps: Mapping[str, HostDump]) -> Iterator[_Rank]:
    """Yield the processes with records, and ended processes whose rank no living process has."""
    living = {process.rank for dump in dumps.values() for process in dump.processes}
    for host, dump in dumps.items():
        for process in dump.processes:
            if process.collectives:
                is_whole = not process.num_groups_left_out
                yield _Rank(host, process.rank, process.pid, _by_key(process.collectives), is_whole)
        for left in dump.left:
            if left.rank not in living:
                yield _Rank(host, left.rank, 0, _by_key(left.groups), False)


def _by_key(groups: Iterable[CollectiveGroup]) -> dict[_Key, CollectiveGroup]:
    return {(group.name, group.kind, group.size, group.ranks, group.is_point_to_point): group for group in groups}


def _disagreement(table: _Table) -> Disagreement | None:
    """Return the disagreement under the first number for which ranks called different operations, or None."""
    for number in range(max(1, table.floor), table.front + 1):
        signatures = table.signatures(number)
        if len(signatures) < 2 or table.has_ended_well(number):
            continue
        majority, *others = signatures.values()
        has_majority = len(majority) * 2 > sum(map(len, signatures.values()))
        operations = {operation for operation, _, _ in signatures}
        calls = table.at(number)
        said = [
            f"{rank_words(ranks)} entered {_named(calls[ranks[0]])}"
            + ("" if len(operations) > 1 else f" with {_amount(calls[ranks[0]])}")
            for ranks in [*others, majority]
        ]
        return Disagreement(
            odd=tuple(sorted(rank for ranks in others for rank in ranks)) if has_majority else (),
            words=f"in {table.label} {', '.join(said[:-1])} while {said[-1]}",
        )
    return None


_Edge = tuple[int, _Table, list[int]]  # a rank, the group in which it waits, the ranks that have not entered it


def _waits(tables: Iterable[_Table]) -> dict[int, tuple[_Table, list[int]]]:
    """Return for each rank that waits for others the group, and the ranks that have not entered the operation."""
    return {
        rank: (table, behind)
        for table in tables
        for rank, call in table.held.items()
        if (behind := table.behind(call.number))
    }


def _crossing(tables: Sequence[_Table]) -> list[_Edge]:
    """Return a cycle of ranks that wait in several groups, each rank for the next; empty without such a cycle."""
    waits = _waits(tables)
    for start in sorted(waits):
        came_from: dict[int, int] = {}
        reached = [start]
        while reached:
            rank = reached.pop()
            for other in waits[rank][1]:
                if other == start:
                    ring = [rank]
                    while ring[-1] != start:
                        ring.append(came_from[ring[-1]])
                    ring.reverse()
                    following = [*ring[1:], start]
                    return [(one, waits[one][0], [after]) for one, after in zip(ring, following, strict=True)]
                if other in waits and other not in came_from:
                    came_from[other] = rank
                    reached.append(other)
    return []


def _crossing_words(crossing: Iterable[_Edge]) -> str:
    return "; ".join(
        f"rank {rank} waits in {_named(table.held[rank])} of {table.label}, which {rank_words(behind)} has not entered"
        for rank, table, behind in crossing
    )


def _about(tables: Sequence[_Table], ranks: Iterable[_Rank]) -> dict[int, str]:
    """Return for each rank, in words, whether it has entered the operation in which others wait."""
    found: dict[int, str] = {}
    # The group with the most waiting ranks comes last: its sentences replace earlier sentences.
    for table in sorted(tables, key=lambda table: len(table.held)):
        for rank, entered in table.entered.items():
            held = sorted(call.number for other, call in table.held.items() if other != rank)
            ahead = [number for number in held if number > entered]
            if ahead:
                call = next(call for call in table.held.values() if call.number == ahead[0])
                last = table.calls[rank].get(entered)
                before = f"its last there was {_named(last)}, {_ago(last)}" if last is not None else "nor any before it"
                found[rank] = f"it has not entered {_named(call)} of {table.label}, {before}"
            elif held and rank not in table.held:
                call = next(call for call in table.held.values() if call.number == held[-1])
                found[rank] = f"it has entered {_named(call)} of {table.label} like them"
    for one in ranks:
        if one.rank is not None and not one.pid:
            last_words = last_call_words(one.groups.values())
            found[one.rank] = f"its last collective was {last_words}" if last_words else ""
    return {rank: words for rank, words in found.items() if words}


def _cleared(tables: Sequence[_Table], disagreements: Iterable[Disagreement], crossing: set[int]) -> frozenset[int]:
    waits = _waits(tables)
    waited_for = {other for _, behind in waits.values() for other in behind}
    # Waits without a rank that is behind clear no rank. Ranks with a different operation are not cleared either;
    # without a majority, any rank may be the different one.
    if not waited_for or any(not found.odd for found in disagreements):
        return frozenset()
    odd = {rank for found in disagreements for rank in found.odd}
    held = {rank for table in tables for rank in table.held}
    return frozenset(held - waited_for - odd - crossing)


def _group_calls(table: _Table, ranks: Iterable[_Rank], disagreement: Disagreement | None) -> GroupCalls:
    name, kind, size, spans, is_point_to_point = table.key
    members = []
    for one in ranks:
        group = one.groups.get(table.key)
        known = one.rank in table.entered
        if group is None and not known:
            continue
        newest = group.calls[0] if group is not None and group.calls else None
        held = table.held.get(one.rank) if one.rank is not None else None
        is_moving = one.pid != 0 and newest is not None and newest.age_s < _JUST_NOW_S
        members.append(
            RankCall(
                host=one.host,
                rank=one.rank,
                pid=one.pid,
                call=held or newest,
                is_behind=table.is_compared
                and one.rank is not None
                and table.entered[one.rank] < table.front
                and not is_moving,
                differs=disagreement is not None and one.rank in disagreement.odd,
            )
        )
    members.sort(key=lambda member: (member.rank is None, member.rank, member.pid))
    return GroupCalls(
        name=name, kind=kind, size=size, ranks=spans, is_point_to_point=is_point_to_point, members=tuple(members)
    )


def _family(operation: str) -> str:
    return _FAMILIES.get(operation, operation)


def _named(call: CollectiveCall) -> str:
    return f"{call.operation} #{call.number}"


def _amount(call: CollectiveCall) -> str:
    return f"{call.count} {call.dtype or 'elements'}"


def _ago(call: CollectiveCall) -> str:
    return f"{call.age_s:.0f} s ago"


def _shown(name: str) -> str:
    if len(name) < _HASH_CHARACTERS:
        return name
    return name[:_SHOWN_CHARACTERS]
