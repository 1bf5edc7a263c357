"""What holds a job up, read from the dumps of its hosts: who waits for whom, who is the odd one out. Pure.

Where: the page `dump` of a job asks. Ranks are grouped by the calls of Python on their main threads; what is said of a
rank names what was seen, so that a reader can judge it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from clary.contract.stack_dumps import Frame, HostDump, ProcessDump, SocketState, ThreadStack

_COLLECTIVE_FILES = ("torch/distributed/", "clary/train/collective/", "smdistributed/", "horovod/")
_COLLECTIVE_CODE = ("c10d::", "gloo::", "ncclGroup", "clary::")  # in names of native functions
_BACKWARD = "_engine_run_backward"  # torch/autograd/graph.py; what it calls is native
_WRAPPERS = frozenset({"wrapper", "inner", "_wrap", "wait", "synchronize"})  # between a caller and what it calls
_LOADER_FILES = ("torch/utils/data/", "multiprocessing/")
_LOADER_CALLS = 6  # of the innermost: between a loader's own wait and whoever asks it for data
# In names of the kernel's functions: pipes and FIFOs, pages of files, network file systems, FUSE.
_FILE_WAITS = (
    "pipe_read",
    "wait_for_partner",
    "folio_wait",
    "io_schedule",
    "nfs",
    "rpc_wait",
    "fuse_",
    "fsync",
    "jbd2",
)
_STOPPED_STATES = "Tt"
_UNINTERRUPTIBLE = "D"
_FEW_RETRANSMITS = 2  # one happens on a link that is well
_FEW_WAITS = 3  # of a main thread while it is watched: who is held up asks now and then whether it is over


class Doing(StrEnum):
    """What a rank's main thread is seen to do."""

    WAITS_FOR_RANKS = "waits for other ranks"
    WAITS_FOR_DATA = "waits for its data loader"
    READS = "is held up by a file or disk"
    STOPPED = "is stopped by a signal"
    OTHER = "does something else"
    UNKNOWN = "could not be looked at"


def is_moving(process: ProcessDump) -> bool:
    """Whether a process's main thread was seen to get on: it waited for one thing after another."""
    return process.num_waits >= _FEW_WAITS


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of a group; `rank` is None where nobody knows it."""

    host: str
    rank: int | None
    pid: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks whose main threads stand at the same place."""

    members: tuple[Member, ...]
    doing: Doing
    operation: str  # of the collective that they wait in; empty for none
    frames: tuple[Frame, ...]  # of the first member, innermost first
    is_odd: bool  # whether the others wait and these do not, or these are fewer than those at another place


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Who or what holds the job up, and what speaks for it."""

    who: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Autopsy:
    """What the dumps of a job's hosts say together."""

    suspicions: tuple[Suspicion, ...]  # empty if nobody stands out
    groups: tuple[Group, ...]  # the largest first


def examine(dumps: Mapping[str, HostDump], *, hosts: Sequence[str], num_ranks: int) -> Autopsy:
    """Group the ranks and say who is to be suspected.

    Args:
        dumps: by host, of those that have answered.
        hosts: all hosts of the job.
        num_ranks: of the job; 0 where that is not known.
    """
    groups = _groups(dumps)
    return Autopsy(
        suspicions=(
            *_absent(dumps, hosts=hosts, num_ranks=num_ranks),
            *_stopped(dumps),
            *(_cut_links(dumps) or _odd_ranks(groups, dumps)),
        ),
        groups=groups,
    )


def doing_of(process: ProcessDump) -> Doing:
    """Say what a process's main thread does."""
    if process.state in _STOPPED_STATES:
        return Doing.STOPPED
    frames = _main(process).frames
    if not frames:
        return Doing.UNKNOWN
    if any(_is_collective(frame) for frame in frames) or _sleeps_in_backward(process, frames):
        return Doing.WAITS_FOR_RANKS
    # Of a loader in the process itself the innermost calls are the user's data set, and are shown as that.
    if any(frame.file.startswith(_LOADER_FILES) for frame in _python(frames)[:_LOADER_CALLS]):
        return Doing.WAITS_FOR_DATA
    if process.state == _UNINTERRUPTIBLE or any(word in process.wait_channel for word in _FILE_WAITS):
        return Doing.READS
    return Doing.OTHER


def place_of(process: ProcessDump) -> str:
    """Say where in the user's own code a process stands: `step (train.py:31)`."""
    frames = _python(_main(process).frames)
    script = next((frame.file for frame in frames if frame.function == "<module>"), "")
    frame = next((frame for frame in frames if frame.file == script), frames[0] if frames else None)
    return f"{frame.function} ({frame.file}:{frame.line})" if frame is not None else "an unknown place"


def _groups(dumps: Mapping[str, HostDump]) -> tuple[Group, ...]:
    by_place: dict[tuple[object, ...], list[tuple[str, ProcessDump]]] = {}
    for host, process in _ranks(dumps):
        doing = doing_of(process)
        frames = _main(process).frames
        key = (doing, *(_python(frames) or frames))
        by_place.setdefault(key, []).append((host, process))
    alike = sorted(by_place.values(), key=lambda members: (-len(members), members[0][1].rank or 0))
    waiting = sum(len(members) for members in alike if doing_of(members[0][1]) is Doing.WAITS_FOR_RANKS)
    largest = len(alike[0]) if alike else 0
    groups = []
    for members in alike:
        first = members[0][1]
        doing = doing_of(first)
        is_odd = doing is not Doing.WAITS_FOR_RANKS if waiting else len(members) < largest
        if waiting and doing is Doing.WAITS_FOR_RANKS and len(members) * 2 < waiting:
            is_odd = True  # waits too, at another place than most
        groups.append(
            Group(
                members=tuple(Member(host=host, rank=process.rank, pid=process.pid) for host, process in members),
                doing=doing,
                operation=operation_of(first) if doing is Doing.WAITS_FOR_RANKS else "",
                frames=_main(first).frames,
                is_odd=is_odd,
            )
        )
    return tuple(groups)


def operation_of(process: ProcessDump) -> str:
    """Return the name of the collective operation in which a process waits."""
    frames = _main(process).frames
    named = [
        frame.function for frame in frames if frame.file.startswith(_COLLECTIVE_FILES) and _is_named(frame.function)
    ]
    if named:
        return named[-1].rpartition(".")[2]  # the outermost: what the caller has called
    native = [frame.function for frame in frames if _is_collective(frame)]
    if not native and frames and frames[0].function == _BACKWARD:
        return "backward"
    return native[-1].partition("(")[0] if native else ""


def _sleeps_in_backward(process: ProcessDump, frames: Sequence[Frame]) -> bool:
    """Whether a rank's backward pass sleeps: gradients are reduced in it, and nothing else of it waits for long."""
    return frames[0].function == _BACKWARD and process.state == "S" and not is_moving(process)


def _is_named(function: str) -> bool:
    last = function.rpartition(".")[2]
    return last not in _WRAPPERS and not last.startswith("_")


def _absent(dumps: Mapping[str, HostDump], *, hosts: Sequence[str], num_ranks: int) -> Iterable[Suspicion]:
    for host in hosts:
        if host not in dumps:
            yield Suspicion(who=host, why="its agent did not answer: the host, its network or its agent is in trouble")
        elif dumps[host].error:
            yield Suspicion(who=host, why=dumps[host].error)
    known = {process.rank for _, process in _ranks(dumps)}
    if known and all(host in dumps for host in hosts):
        for rank in range(num_ranks):
            if rank not in known:
                yield Suspicion(who=f"rank {rank}", why="its process does not run: the others may wait for it")


def _stopped(dumps: Mapping[str, HostDump]) -> Iterable[Suspicion]:
    for host, dump in dumps.items():
        for process in dump.processes:
            if process.state in _STOPPED_STATES:
                why = f"it is stopped by a signal (state {process.state}); kill -CONT {process.pid} would let it go on"
                yield Suspicion(who=_who(host, process), why=why)


def _cut_links(dumps: Mapping[str, HostDump]) -> list[Suspicion]:
    """Find pairs of hosts between which what is sent is sent again and again, and acknowledged by nobody."""
    names = {address: host for host, dump in dumps.items() for address in dump.addresses}
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


def _odd_ranks(groups: Sequence[Group], dumps: Mapping[str, HostDump]) -> Iterable[Suspicion]:
    """Suspect whoever is elsewhere than those who wait."""
    processes = {(host, process.pid): process for host, process in _ranks(dumps)}
    waiting = [group for group in groups if group.doing is Doing.WAITS_FOR_RANKS and not group.is_odd]
    held_up = [member for group in waiting for member in group.members if not is_moving(processes[_key(member)])]
    if not held_up:
        return
    others = ", ".join(sorted({group.operation or "a collective" for group in waiting}))
    places = [
        f"{_ranks_of(group)} in {group.operation} at {place_of(processes[_key(group.members[0])])}" for group in waiting
    ]
    if len({group.operation for group in waiting}) > 1:
        yield Suspicion(
            who="the order of collectives",
            why=f"ranks wait in different ones, one left out or out of order: {'; '.join(places)}",
        )
    for group in groups:
        if not group.is_odd or group.doing is Doing.STOPPED:
            continue
        for member in group.members:
            process = processes[_key(member)]
            if is_moving(process) and group.doing is not Doing.WAITS_FOR_DATA:
                continue
            what = f"{group.doing.value}: {place_of(process)}"
            if group.doing is Doing.WAITS_FOR_RANKS:
                what = f"waits in {group.operation or 'a collective'} at {place_of(process)}"
            elif group.doing is Doing.UNKNOWN:
                what = f"{group.doing.value} ({process.error})"
            why = f"it {what}, while {len(held_up)} {'rank waits' if len(held_up) == 1 else 'ranks wait'} in {others}"
            workers = _workers(process, dumps[member.host]) if group.doing is Doing.WAITS_FOR_DATA else ""
            yield Suspicion(who=_who(member.host, process), why=why + workers)


def _ranks_of(group: Group) -> str:
    named = [str(member.rank) for member in group.members]
    return f"rank {named[0]}" if len(named) == 1 else f"ranks {', '.join(named)}"


def _key(member: Member) -> tuple[str, int]:
    return member.host, member.pid


def _workers(process: ProcessDump, dump: HostDump) -> str:
    """Say where the workers of a rank's data loader stand."""
    children = [child for child in dump.processes if child.parent == process.pid and _main(child).frames]
    places = sorted({place_of(child) for child in children})
    return f"; its {len(children)} workers stand at {', '.join(places)}" if children else "; it has no workers"


def _ranks(dumps: Mapping[str, HostDump]) -> list[tuple[str, ProcessDump]]:
    """Return the processes that are ranks; where nobody is known as one, those that run Python."""
    everything = [(host, process) for host, dump in dumps.items() for process in dump.processes]
    return [item for item in everything if item[1].rank is not None] or [item for item in everything if item[1].threads]


def _main(process: ProcessDump) -> ThreadStack:
    empty = ThreadStack(thread=0, name="", is_main=True, frames=())
    return next((thread for thread in process.threads if thread.is_main), empty)


def _python(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    return tuple(frame for frame in frames if frame.file.endswith(".py") or frame.file.startswith("<"))


def _is_collective(frame: Frame) -> bool:
    return frame.file.startswith(_COLLECTIVE_FILES) or any(code in frame.function for code in _COLLECTIVE_CODE)


def _address(place: str) -> str:
    return place.rpartition(":")[0].strip("[]")


def _who(host: str, process: ProcessDump) -> str:
    rank = f"rank {process.rank}" if process.rank is not None else process.command
    return f"{rank} on {host} (process {process.pid})"
