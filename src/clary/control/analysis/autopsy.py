"""Finds the cause of a blocked job from its hosts' dumps: waiting ranks, awaited ranks, odd ranks. Pure.

Where: the page `dump` of a job calls it. Ranks are grouped by the Python calls on their main threads; the text on a
rank names the evidence, so that a reader can judge it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from clary.contract.stack_dumps import Frame, HostDump, ProcessDump, SocketState
from clary.control.analysis.last_collectives import Counted, GroupCalls, count_collectives
from clary.control.analysis.rank_doings import (
    FEW_WAITS,
    Activity,
    Doing,
    activity_of,
    doing_of,
    main_thread,
    operation_of,
    place_of,
    python_calls,
    standing_calls,
)

_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
_FEW_RETRANSMITS = 2  # a healthy link may have one retransmission
_ORDER = "the order of collectives"


class Weight(StrEnum):
    """Strength of a suspicion."""

    SUSPECT = "suspect"  # likely to block the job, such as a rank that does nothing while others wait for it
    WAITED_FOR = "waited for"  # the rank does other work: an evaluation, a checkpoint, a compilation
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of a group; `rank` is None if unknown."""

    host: str
    rank: int | None
    pid: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks whose main threads are at the same position in the code."""

    members: tuple[Member, ...]
    doing: Doing
    operation: str  # operation in which they wait; empty if they do not wait in one
    frames: tuple[Frame, ...]  # calls of the first member, innermost first
    is_odd: bool  # whether only other ranks wait, or these ranks wait in another operation than most


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Rank, host, link or order of collectives that may block the job, with the evidence."""

    who: str
    why: str
    weight: Weight = Weight.SUSPECT


@dataclass(frozen=True, kw_only=True)
class Autopsy:
    """Combined result of the dumps of a job's hosts."""

    suspicions: tuple[Suspicion, ...]  # empty if no rank stands out
    groups: tuple[Group, ...]  # the largest first
    collectives: tuple[GroupCalls, ...] = ()  # groups of ranks with each rank's last operation, if recorded


def examine(dumps: Mapping[str, HostDump], *, hosts: Sequence[str], num_ranks: int, is_final: bool = True) -> Autopsy:
    """Group the ranks and return the suspects.

    Args:
        dumps: dumps by host, for the hosts that have answered.
        hosts: all hosts of the job.
        num_ranks: number of ranks of the job; 0 if unknown.
        is_final: whether hosts without an answer had enough time for one.
    """
    counted = count_collectives(dumps, num_ranks=num_ranks)
    groups = _groups(dumps, counted)
    return Autopsy(
        suspicions=(
            *_absent(dumps, counted, hosts=hosts, num_ranks=num_ranks, is_final=is_final),
            *_stopped(dumps, counted),
            *_cut_links(dumps),
            *_odd_ranks(groups, dumps, counted),
        ),
        groups=groups,
        collectives=counted.groups,
    )


def _groups(dumps: Mapping[str, HostDump], counted: Counted) -> tuple[Group, ...]:
    by_place: dict[tuple[object, ...], list[tuple[str, ProcessDump]]] = {}
    for host, process in _ranks(dumps):
        frames = standing_calls(process)
        by_place.setdefault((doing_of(process), *(python_calls(frames) or frames)), []).append((host, process))
    alike = sorted(by_place.values(), key=lambda members: (-len(members), members[0][1].rank or 0))
    odd = _odd_places([(doing_of(members[0][1]), operation_of(members[0][1]), len(members)) for members in alike])
    return tuple(
        Group(
            members=tuple(Member(host=host, rank=process.rank, pid=process.pid) for host, process in members),
            doing=doing_of(members[0][1]),
            operation=operation_of(members[0][1]),
            frames=standing_calls(members[0][1]),
            is_odd=is_odd and not all(process.rank in counted.cleared for _, process in members),
        )
        for members, is_odd in zip(alike, odd, strict=True)
    )


def _odd_places(places: Sequence[tuple[Doing, str, int]]) -> list[bool]:
    """Return for each position (given by activity, operation and number of ranks) whether it stands out.

    If only some ranks wait, the other ranks stand out; if all ranks wait, those in another operation than most stand
    out. Ranks of a pipeline send or receive depending on their stage, so that no send or receive stands out.
    """
    waiting = [doing in (Doing.WAITS_FOR_RANKS, Doing.WAITS_FOR_GPU) for doing, _, _ in places]
    if not any(waiting) or not all(waiting):
        return [any(waiting) and not waits for waits in waiting]
    sizes: dict[str, int] = {}
    for _, operation, size in places:
        sizes[operation] = sizes.get(operation, 0) + size
    if _POINT_TO_POINT & set(sizes) or max(sizes.values()) * 2 <= sum(sizes.values()):
        return [False] * len(places)
    most = max(sizes, key=lambda operation: sizes[operation])
    return [operation != most for _, operation, _ in places]


def _absent(
    dumps: Mapping[str, HostDump], counted: Counted, *, hosts: Sequence[str], num_ranks: int, is_final: bool
) -> Iterable[Suspicion]:
    for host in hosts:
        if host not in dumps and is_final:
            yield Suspicion(who=host, why="its agent did not answer: the host, its network or its agent is in trouble")
        elif host in dumps and dumps[host].error:
            yield Suspicion(who=host, why=dumps[host].error, weight=Weight.NOTE)
        elif host in dumps and dumps[host].num_records_left_out:
            why = f"last collectives of {dumps[host].num_records_left_out} processes are left out, of ended ones first"
            yield Suspicion(who=host, why=why, weight=Weight.NOTE)
    known = {process.rank for _, process in _ranks(dumps)}
    is_whole = all(host in dumps and not dumps[host].num_left_out and not dumps[host].error for host in hosts)
    if known and known != {None} and is_whole:
        for rank in range(num_ranks):
            if rank not in known:
                why = "its process does not run: the others may wait for it"
                yield Suspicion(who=f"rank {rank}", why=_with(why, counted.about.get(rank)))


def _stopped(dumps: Mapping[str, HostDump], counted: Counted) -> Iterable[Suspicion]:
    for host, dump in dumps.items():
        for process in dump.processes:
            if process.state == "T":
                remedy = f"kill -CONT {process.pid} on the machine of {host} would let it go on"
                known = "" if process.rank is None else counted.about.get(process.rank)
                why = _with(f"it is stopped by a signal (state T); {remedy}", known)
                yield Suspicion(who=_who(host, process), why=why)
            elif process.state == "t":
                yield Suspicion(who=_who(host, process), why="it is held by a debugger or tracer (state t)")


def _cut_links(dumps: Mapping[str, HostDump]) -> list[Suspicion]:
    """Find pairs of hosts whose traffic is retransmitted again and again and never acknowledged."""
    owners: dict[str, set[str]] = {}
    for host, dump in dumps.items():
        for address in dump.addresses:
            owners.setdefault(address, set()).add(host)
    # Hosts without isolation share the machine's addresses, which then identify no host.
    names = {address: next(iter(hosts)) for address, hosts in owners.items() if len(hosts) == 1}
    found: dict[tuple[str, str], SocketState] = {}
    for host, dump in dumps.items():
        for process in dump.processes:
            for item in process.sockets:
                other = names.get(_address(item.peer))
                if other in (None, host) or item.num_retransmits < _FEW_RETRANSMITS:
                    continue
                assert other is not None
                first, second = sorted((host, other))
                kept = found.get((first, second))
                if kept is None or kept.num_retransmits < item.num_retransmits:
                    found[first, second] = item
    return [
        Suspicion(
            who=f"the link {first} - {second}",
            why=f"from {item.local} to {item.peer} {item.unsent_bytes} bytes are not acknowledged after "
            f"{item.num_retransmits} retransmissions",
        )
        for (first, second), item in sorted(found.items())
    ]


def _odd_ranks(groups: Sequence[Group], dumps: Mapping[str, HostDump], counted: Counted) -> Iterable[Suspicion]:
    """Yield a suspicion for each rank that does not wait with the others, or called another collective than most.

    Suspects the order of collectives if all ranks wait, but not all in the same collective, and no rank is odd, or if
    ranks wait for each other. Yields no suspicion while at least half of the waiting ranks make progress.
    """
    processes = {(host, process.pid): process for host, process in _ranks(dumps)}
    waiting = [group for group in groups if group.doing in (Doing.WAITS_FOR_RANKS, Doing.WAITS_FOR_GPU)]
    usual = [group for group in waiting if not group.is_odd]
    waiters = [processes[member.host, member.pid] for group in usual for member in group.members]
    still = [process for process in waiters if process.num_waits < FEW_WAITS]
    if len(still) * 2 <= len(waiters):  # the waiting ranks make progress, and so does the job
        return
    operations = {group.operation for group in usual}
    out_of_order = [*(found.words for found in counted.disagreements if not found.odd), counted.crossing]
    if len(usual) == len(groups) and len(operations) > 1 and not operations & _POINT_TO_POINT:
        places = "; ".join(_place_of_group(group, processes) for group in usual)
        why = f"ranks wait in different ones, one left out or out of order: {places}"
        yield Suspicion(who=_ORDER, why=_with(why, *out_of_order))
        out_of_order = []
    differing = {rank: found.words for found in counted.disagreements for rank in found.odd}
    others = ", ".join(sorted(operation or "a synchronisation with the GPU" for operation in operations))
    accused = set()
    for group in groups:
        if group.is_odd and group.doing not in (Doing.STOPPED, Doing.TRACED):
            for member in group.members:
                dump, process = dumps[member.host], processes[member.host, member.pid]
                weight, what = _judge(process, group, dump)
                waits = f"{len(waiters)} {'rank waits' if len(waiters) == 1 else 'ranks wait'} for it in {others}"
                known = "" if process.rank is None else differing.get(process.rank) or counted.about.get(process.rank)
                yield Suspicion(who=_who(member.host, process), why=_with(f"it {what}; {waits}", known), weight=weight)
                accused.add(process.rank)
    named = {process.rank: _who(host, process) for (host, _), process in processes.items()}
    for rank in sorted(differing.keys() - accused):
        why = f"it called another operation than most: {differing[rank]}"
        yield Suspicion(who=named.get(rank, f"rank {rank}"), why=why)
    if any(out_of_order) and not accused and not differing:
        yield Suspicion(who=_ORDER, why=_with("ranks wait for each other", *out_of_order))


def _judge(process: ProcessDump, group: Group, dump: HostDump) -> tuple[Weight, str]:
    """Return the weight of the suspicion against an awaited rank, and the rank's activity in words."""
    place = place_of(process)
    if group.doing is Doing.UNKNOWN:
        return Weight.SUSPECT, f"{group.doing.value} ({process.error})"
    if group.doing is Doing.WAITS_FOR_RANKS:
        others = "another collective than theirs: one was left out, or they are out of order"
        return Weight.SUSPECT, f"waits in {group.operation} at {place}, {others}"
    activity = activity_of(process, dump.watched_s)
    workers = _workers(process, dump) if group.doing is Doing.WAITS_FOR_DATA else ""
    if activity is Activity.NONE:
        return Weight.SUSPECT, f"{group.doing.value}: {place}{workers}"
    where = f"{activity.value} at {place}"
    if group.doing is Doing.WAITS_FOR_DATA:
        where = f"{group.doing.value} at {place}, whose processes together {_PLURAL[activity]}{workers}"
    return Weight.WAITED_FOR, f"{where}; dump again: if it still stands there, suspect it"


_PLURAL = {
    Activity.COMPUTES: "compute",
    Activity.MOVES_DATA: "read or write",
    Activity.TRIES: "wait for one thing after another",
}


def _place_of_group(group: Group, processes: Mapping[tuple[str, int], ProcessDump]) -> str:
    first = group.members[0]
    named = [str(member.rank) for member in group.members]
    ranks = f"rank {named[0]}" if len(named) == 1 else f"ranks {', '.join(named)}"
    return f"{ranks} in {group.operation} at {place_of(processes[first.host, first.pid])}"


def _workers(process: ProcessDump, dump: HostDump) -> str:
    """Return a sentence on the code positions of a rank's data loading workers."""
    children = [child for child in dump.processes if child.parent == process.pid and main_thread(child).frames]
    places = sorted({place_of(child) for child in children})
    if not children:
        return "; it has no workers"
    whose = f"{len(children)} workers stand" if len(children) > 1 else "worker stands"
    return f"; its {whose} at {', '.join(places)}"


def _ranks(dumps: Mapping[str, HostDump]) -> list[tuple[str, ProcessDump]]:
    """Return the processes that are ranks, or the Python processes if no rank is known."""
    everything = [(host, process) for host, dump in dumps.items() for process in dump.processes]
    return [item for item in everything if item[1].rank is not None] or [item for item in everything if item[1].threads]


def _with(why: str, *more: str | None) -> str:
    return "; ".join([why, *filter(None, more)])


def _address(place: str) -> str:
    return place.rpartition(":")[0].strip("[]")


def _who(host: str, process: ProcessDump) -> str:
    rank = f"rank {process.rank}" if process.rank is not None else process.command
    return f"{rank} on {host} (process {process.pid})"
