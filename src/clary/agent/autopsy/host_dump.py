"""Dump of all processes of one host's program at one moment.

Where: `autopsy.stack_dumps` takes a dump when the service requests it, and when the program makes no progress.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from clary.agent.autopsy import process_state
from clary.agent.autopsy.call_records import FoundRecords, groups_of, left_calls, match, own_number, read_records
from clary.agent.autopsy.connections import addresses_in, read_connections, sockets_of
from clary.agent.autopsy.stacks import find_py_spy, read_stacks
from clary.base.processes import MAX_ENVIRONMENT_BYTES, ProcessEntry, find_variable, live_descendants
from clary.contract.collective_records import CallRecord
from clary.contract.stack_dumps import MAX_PROCESSES, HostDump, ProcessDump, SocketState
from clary.contract.step_records import FOLDER as STEPS_FOLDER

LIMIT_S = 20.0  # for all stacks of a host; later processes get no stacks
WATCHED_S = 0.7  # in this time a running process blocks many times, a hung process never
_NUM_READERS = 4
_NUM_ROOTS = 3  # processes whose /proc/PID/root is searched for records: one may end meanwhile
_TRY_S = 6.0  # limit of one run of py-spy
_RANK_DIGITS = 6  # the program chooses the value, and Python refuses to parse thousands of digits


def dump_host(
    first_pid: int,
    *,
    number: int,
    reason: str,
    host: str,
    addresses: Sequence[str],
    ranks: Mapping[int, int],
    now: datetime,
    ml_folder: Path | None = None,
    is_ending: Callable[[], bool] = lambda: False,
) -> HostDump:
    """Dump the descendants of a host's first process; no run of py-spy on a further process begins after `LIMIT_S`.

    Args:
        first_pid: pid of the host's first process on the machine.
        number: of the request.
        reason: why the dump is taken.
        host: name of the host.
        addresses: of the host.
        ranks: pid -> rank, of processes that the agent itself has started as ranks.
        now: time of day.
        ml_folder: `/opt/ml`, in which ranks leave records of their last collectives; None: no records are read.
        is_ending: whether the dump is no longer needed; then no further process is read.
    """
    entries = live_descendants(first_pid)
    known = with_ranks(entries, ranks, {pid: _rank_in_environment(pid) for pid in entries})
    # Ranks first: the limits of time and size may not suffice for every process.
    order = sorted(entries, key=lambda pid: (known.get(pid) is None, pid))[:MAX_PROCESSES]
    begin = {pid: _Counters.of(pid) for pid in entries}
    time.sleep(WATCHED_S)  # before the first stack is read: a pause by py-spy would count as a wait
    own = {pid: _Counters.of(pid).since(before) for pid, before in begin.items()}
    # The first process may have another root folder than the program.
    roots = [f"/proc/{pid}/root" for pid in (*order[:_NUM_ROOTS], first_pid)]
    own_numbers = {pid: own_number(pid) for pid in entries} if ml_folder is not None else {}
    found = FoundRecords()
    if ml_folder is not None:
        found = read_records(ml_folder, roots, below=STEPS_FOLDER, living=set(own_numbers.values()))
    now_ns = time.monotonic_ns()
    recorded, left = match(found.records, own_numbers, known)
    connections = next(filter(None, map(read_connections, (first_pid, *order))), {})
    look = functools.partial(
        _look,
        entries=entries,
        ranks=known,
        used={pid: own[pid].with_all(own[child] for child in below(pid, entries)) for pid in order},
        recorded=recorded,
        now_ns=now_ns,
        connections=connections,
        program=find_py_spy(),
        end_s=time.monotonic() + LIMIT_S,
        is_ending=is_ending,
    )
    processes = tuple(_at_once(look, order))
    return HostDump(
        number=number,
        reason=reason,
        host=host,
        taken_at=now,
        addresses=tuple(sorted({*addresses, *addresses_in(connections.values())})),
        processes=processes,
        watched_s=WATCHED_S,
        num_left_out=len(entries) - len(order),
        left=left_calls(left, now_ns),
        num_records_left_out=found.num_left_out,
        error="" if entries else "no process of the program runs",
    )


def with_ranks(
    entries: Mapping[int, ProcessEntry], started: Mapping[int, int], environments: Mapping[int, int | None]
) -> dict[int, int]:
    """Return pid -> rank. Pure.

    RANK in the environment identifies a process that a launcher has started. Its children inherit the variable: of
    several processes with one rank, the topmost is the rank.

    Args:
        entries: the processes of the host.
        started: pid -> rank, of the processes that the agent has started as ranks.
        environments: pid -> RANK in the environment of the process; None if it is not set.
    """
    if started:
        return {pid: rank for pid, rank in started.items() if pid in entries}
    return {
        pid: rank
        for pid, rank in environments.items()
        if rank is not None and environments.get(entries[pid].parent) != rank
    }


def below(pid: int, entries: Mapping[int, ProcessEntry]) -> list[int]:
    """Return the descendants of a process. Pure."""
    found = [child for child, entry in entries.items() if entry.parent == pid]
    return found + [grandchild for child in found for grandchild in below(child, entries)]


class _Counters(NamedTuple):
    """Counters of a process; `num_waits` counts its main thread alone."""

    num_waits: int
    cpu_s: float
    num_bytes: int
    runnable_s: Mapping[int, float]  # per thread

    @classmethod
    def of(cls, pid: int) -> _Counters:
        return cls(
            process_state.num_waits(pid),
            process_state.cpu_s(pid),
            process_state.bytes_moved(pid),
            process_state.runnable_s(pid),
        )

    def since(self, before: _Counters) -> _Used:
        """Return the increase of the counters; zero for a process that has ended meanwhile."""
        runnable = (value - before.runnable_s.get(thread, 0.0) for thread, value in self.runnable_s.items())
        return _Used(
            max(0, self.num_waits - before.num_waits),
            max(0.0, self.cpu_s - before.cpu_s),
            max(0, self.num_bytes - before.num_bytes),
            max(runnable, default=0.0),
        )


class _Used(NamedTuple):
    """Increase of a process's counters while it was watched."""

    num_waits: int
    cpu_s: float
    num_bytes: int
    runnable_s: float  # of the thread that ran or waited for a processor for the longest time

    def with_all(self, others: Iterable[_Used]) -> _Used:
        """Return the counters plus other processes' processor time and bytes, and the busiest thread's time."""
        kept = list(others)
        return _Used(
            self.num_waits,
            self.cpu_s + sum(other.cpu_s for other in kept),
            self.num_bytes + sum(other.num_bytes for other in kept),
            max(self.runnable_s, *(other.runnable_s for other in kept)) if kept else self.runnable_s,
        )


def _at_once(look: Callable[[int], ProcessDump], pids: Sequence[int]) -> list[ProcessDump]:
    """Call `look` for each process on several daemon threads; a hung process cannot delay the agent's exit."""
    waiting, found = iter(pids), dict[int, ProcessDump]()
    taking = threading.Lock()

    def read() -> None:
        while True:
            with taking:
                pid = next(waiting, None)
            if pid is None:
                return
            found[pid] = look(pid)

    readers = [threading.Thread(target=read, name="autopsy", daemon=True) for _ in range(_NUM_READERS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return [found[pid] for pid in pids if pid in found]


def _look(
    pid: int,
    *,
    entries: Mapping[int, ProcessEntry],
    ranks: Mapping[int, int],
    used: Mapping[int, _Used],
    recorded: Mapping[int, CallRecord],
    now_ns: int,
    connections: dict[int, SocketState],
    program: str | None,
    end_s: float,
    is_ending: Callable[[], bool],
) -> ProcessDump:
    entry = entries[pid]
    left_s = end_s - time.monotonic()
    if left_s > 0 and not is_ending():
        threads, error = read_stacks(pid, program=program, limit_s=min(_TRY_S, left_s), started_at=entry.started_at)
    else:
        threads, error = (), f"not looked at within {LIMIT_S:g} s"
    return ProcessDump(
        pid=pid,
        parent=entry.parent,
        rank=ranks.get(pid),
        command=process_state.command(pid),
        state=entry.state,
        wait_channel=process_state.wait_channel(pid),
        cpu_s=process_state.cpu_s(pid),
        num_waits=used[pid].num_waits,
        cpu_used_s=round(used[pid].cpu_s, 2),
        bytes_moved=used[pid].num_bytes,
        runnable_s=round(used[pid].runnable_s, 2),
        threads=threads,
        sockets=sockets_of(pid, connections),
        error=error,
        collectives=groups_of(recorded[pid], now_ns) if pid in recorded else (),
        num_groups_left_out=recorded[pid].num_left_out if pid in recorded else 0,
    )


def _rank_in_environment(pid: int) -> int | None:
    text = find_variable(process_state.read(f"/proc/{pid}/environ", MAX_ENVIRONMENT_BYTES), "RANK") or b""
    return int(text) if text.isdigit() and len(text) <= _RANK_DIGITS else None
