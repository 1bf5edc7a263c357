"""The processes of a host's program, found cheaply and read repeatedly.

Where: `program_source` makes one when the program starts. The host's cgroup, if it has one, lists the members.
Otherwise the machine's process list is read, and only new numbers are opened: a process that is no descendant of the
first process at its start never becomes one, because the first process adopts orphans.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from clary.agent.metrics.growth import Count
from clary.agent.metrics.kept_files import KeptFile, OpenFiles
from clary.agent.metrics.proc_texts import ProcessStat, parse_environment_rank, parse_io, parse_stat

MAX_OPEN_FILES = 600  # of an agent's 1024: two per process, and the rest of the agent has files too
MAX_PROCESSES = 4096  # read at most; further processes are not measured

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessReading(NamedTuple):
    """One process at one moment. `used` counts seconds of processor time, bytes read, bytes written."""

    rank: int | None
    memory_bytes: int
    num_threads: int  # 0 for an ended process that waits to be reaped
    used: Count


class ProcessTable:
    """A process and its descendants.

    Args:
        first_pid: first process of the host, as this machine numbers it.
        ranks: pid -> global rank, of processes that the agent itself has started as ranks.
        members: lists the pids of a cgroup; None without one.
        max_open_files: of /proc that it keeps open at most.
    """

    def __init__(
        self,
        first_pid: int,
        *,
        ranks: Mapping[int, int],
        members: Callable[[], Iterable[int] | None] | None,
        max_open_files: int = MAX_OPEN_FILES,
    ) -> None:
        self._first_pid = first_pid
        self._ranks = ranks
        self._members = members
        self._budget = OpenFiles(max_open_files)
        self._known: dict[int, _Process] = {}
        self._strangers: set[int] = set()

    def look(self) -> None:
        """Find new processes and newly known ranks; `read` removes ended processes."""
        for pid, process in self._known.items():
            if process.rank is None:
                # Between fork and exec a process still shows the environment of its parent.
                process.rank = self._rank_of(pid, process.parent)
        listed = self._members() if self._members is not None else None
        if listed is not None:
            newcomers = [pid for pid in (self._first_pid, *listed) if pid not in self._known]
            self._admit({pid: stat for pid in newcomers if (stat := _stat_of(pid)) is not None})
            return
        present = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self._strangers &= present
        fresh = {}
        for pid in present - self._strangers - self._known.keys():
            stat = _stat_of(pid)
            if stat is not None:
                fresh[pid] = stat
        ours: dict[int, ProcessStat] = {}
        for pid, stat in fresh.items():
            belongs = self._belongs(pid, fresh)
            if belongs:
                ours[pid] = stat
            elif belongs is not None:
                self._strangers.add(pid)
        self._admit(ours)

    def read(self) -> dict[int, ProcessReading]:
        """Return pid -> reading of a process; processes that have ended since the last call are left out."""
        readings = {}
        for pid, process in list(self._known.items()):
            reading = process.read()
            if reading is None:
                process.close()
                del self._known[pid]
            else:
                readings[pid] = reading
        return readings

    def close(self) -> None:
        """Close every file."""
        for process in self._known.values():
            process.close()
        self._known.clear()

    def _admit(self, newcomers: Mapping[int, ProcessStat]) -> None:
        # The oldest first, so that a child finds its parent's rank.
        for pid, stat in sorted(newcomers.items(), key=lambda item: (item[1].started_at, item[0])):
            if len(self._known) >= MAX_PROCESSES:
                return
            self._known[pid] = _Process(pid, stat, rank=self._rank_of(pid, stat.parent), budget=self._budget)

    def _belongs(self, pid: int, fresh: Mapping[int, ProcessStat]) -> bool | None:
        """Whether a new process is the first one or a descendant of a known one.

        Returns: None if that is not known yet: its parent has ended since, so it has another one now.
        """
        for _ in range(len(fresh) + 1):
            if pid == self._first_pid or pid in self._known:
                return True
            if pid == 0 or pid in self._strangers:
                return False
            if pid not in fresh:
                return None
            pid = fresh[pid].parent
        return None

    def _rank_of(self, pid: int, parent: int) -> int | None:
        """Return the rank that a process is or belongs to, which never changes; None for launchers and the like."""
        if (rank := self._ranks.get(pid)) is not None:
            return rank
        above = self._known.get(parent)
        if above is not None and above.rank is not None:
            return above.rank
        if pid == self._first_pid:
            return None
        environment = KeptFile(f"/proc/{pid}/environ").read()
        return parse_environment_rank(environment) if environment else None


class _Process:
    """A process of the program, with its open files."""

    def __init__(self, pid: int, stat: ProcessStat, *, rank: int | None, budget: OpenFiles) -> None:
        self.rank = rank
        self.parent = stat.parent
        self._started_at = stat.started_at
        self._stat = KeptFile(f"/proc/{pid}/stat", budget)
        self._io = KeptFile(f"/proc/{pid}/io", budget)

    def read(self) -> ProcessReading | None:
        text = self._stat.read()
        if not text:
            return None
        stat = parse_stat(text)
        if stat.started_at != self._started_at:
            return None  # another process has its number now
        self.parent = stat.parent
        read_bytes = write_bytes = 0
        # Another user's processes hide it, and so does a first process, which forbids tracing.
        with contextlib.suppress(KeyError, ValueError):
            read_bytes, write_bytes = parse_io(self._io.read() or b"")
        seconds = (stat.cpu_ticks + stat.reaped_cpu_ticks) / _TICKS_PER_S
        return ProcessReading(
            rank=self.rank,
            memory_bytes=stat.memory_pages * _PAGE_BYTES,
            num_threads=0 if stat.has_ended else stat.num_threads,
            used=Count(stat.parent, stat.started_at, (seconds, float(read_bytes), float(write_bytes))),
        )

    def close(self) -> None:
        self._stat.close()
        self._io.close()


def _stat_of(pid: int) -> ProcessStat | None:
    text = KeptFile(f"/proc/{pid}/stat").read()
    return parse_stat(text) if text else None
