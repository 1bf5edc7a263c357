"""Table of the processes of a host's program, which are found cheaply and read repeatedly.

Where: `program_source` and `memory_watch` create one each when the program starts. The host's cgroup, if it has one,
lists the processes. Otherwise the machine's process list is read, and only new pids are opened: a process that does not
start as a descendant of the first process never becomes one, because the first process adopts orphans.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from clary.agent.metrics.growth import Count
from clary.agent.metrics.kept_files import KeptFile, OpenFiles
from clary.agent.metrics.proc_texts import ProcessStat, parse_environment_rank, parse_io, parse_stat

MAX_OPEN_FILES = 600  # of an agent's 1024 descriptors: two per process; other parts of the agent need some too
MAX_PROCESSES = 4096  # limit of processes; further processes are not measured

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessReading(NamedTuple):
    """One process at one moment. `used` counts seconds of processor time, bytes read, bytes written."""

    rank: int | None
    memory_bytes: int
    num_threads: int  # 0 for a zombie
    used: Count


class ProcessTable:
    """A process and its descendants.

    Args:
        first_pid: pid of the host's first process on this machine.
        ranks: pid -> global rank, of processes that the agent itself has started as ranks.
        members: lists the pids of the host's cgroup; None without a cgroup.
        max_open_files: limit of files of /proc that are kept open.
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
        """Return pid -> reading, except processes that have ended since the last call."""
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
        # Oldest first, so that a child finds its parent's rank.
        for pid, stat in sorted(newcomers.items(), key=lambda item: (item[1].started_at, item[0])):
            if len(self._known) >= MAX_PROCESSES:
                return
            self._known[pid] = _Process(pid, stat, rank=self._rank_of(pid, stat.parent), budget=self._budget)

    def _belongs(self, pid: int, fresh: Mapping[int, ProcessStat]) -> bool | None:
        """Whether a new process is the first process or a descendant of a known process.

        Returns: None if it is not known yet, because the parent has ended and the process has a new parent.
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
        """Return the rank to which a process belongs, which never changes; None for launchers and similar processes."""
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
            return None  # another process has its pid now
        self.parent = stat.parent
        read_bytes = write_bytes = 0
        # /proc hides this for another user's processes and for a first process, which forbids tracing.
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
