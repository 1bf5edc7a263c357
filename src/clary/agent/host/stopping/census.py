"""Census of a program's live processes: count them, signal each once, kill them.

Where: the keeper of a host calls it. In a PID namespace the kernel signals all processes in one step: kill(-1) from the
first process reaches each process once, including a process that is just being forked. Plain processes, and processes
of a namespace in which some are spared, are found by a search through the keeper's descendants; the keeper becomes the
parent of every orphan among them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from typing import Protocol

from clary.agent.host.stopping.shared_memory import ProgramMemory
from clary.base.processes import ProcessEntry, live_descendants, read_entry

LOOK_INTERVAL_S = 2.0  # between scans for plain processes' shared memory; each scan reads the machine's process list
_KILL_LIMIT_S = 3.0  # after this time, the remaining processes hang in the kernel
_KILL_PAUSE_S = 0.002


class Census(Protocol):
    """Finds and signals all processes of a program, and no other processes."""

    def live(self) -> dict[int, ProcessEntry]:
        """Return the live processes, keyed by the pid for signals; empty if /proc has pids of another namespace."""

    def may_hold(self, pid: int) -> bool:
        """Whether a signal's sender, by its pid in the caller's namespace, may be a process of the program."""

    def signal_all(self, signal_number: int, *, spare: Collection[int] = ()) -> int:
        """Signal every live process once, except pids in `spare`; return the number of live processes."""

    def kill_all(self) -> None:
        """Kill all processes; the caller must still reap them."""

    @property
    def look_interval_s(self) -> float | None:
        """Seconds between calls of `look`; None: no calls."""

    def look(self) -> None:
        """Record the leftovers that the program would have if it ended now."""


class NamespaceCensus:
    """All processes of the PID namespace whose first process is the caller."""

    look_interval_s = None

    def __init__(self) -> None:
        self._kept_pid: int | None = None

    @property
    def can_keep(self) -> bool:
        """Whether `keep` works, because /proc has the pids of this namespace."""
        return _own_pid_in_proc() == os.getpid()

    def keep(self, pid: int) -> None:
        """Exempt one process from now on: it does not belong to the program, and outlives it.

        It still receives signals to all processes, except SIGKILL, so it must block them.
        """
        self._kept_pid = pid

    def look(self) -> None:
        """Do nothing: leftovers of the program vanish with its namespaces."""

    def live(self) -> dict[int, ProcessEntry]:
        """Return the live processes; empty if /proc is the machine's, with other pids."""
        return self._descendants() if self.can_keep else {}

    def may_hold(self, pid: int) -> bool:
        """Whether a signal's sender may be a process of the program: every process in the namespace is."""
        return pid != 0

    def signal_all(self, signal_number: int, *, spare: Collection[int] = ()) -> int:
        """Signal every live process once, except pids in `spare`; return the number of live processes."""
        if spare:
            return _signal_each(signal_number, spare, self._descendants)
        num_alive = len(self._descendants())
        _signal(-1, signal_number)
        return num_alive

    def kill_all(self) -> None:
        """Kill all processes; the caller must still reap them."""
        if self._kept_pid is None:
            _signal(-1, signal.SIGKILL)
        else:
            _kill_each(self._descendants)

    def _descendants(self) -> dict[int, ProcessEntry]:
        alive = live_descendants(_own_pid_in_proc())
        if self._kept_pid is not None:
            alive.pop(self._kept_pid, None)
        return alive


class DescendantCensus:
    """All descendants of the caller, which must be a subreaper."""

    look_interval_s = LOOK_INTERVAL_S

    def __init__(self) -> None:
        self._memory = ProgramMemory()

    def look(self) -> None:
        """Record the shared memory that the program would leave behind if it ended now."""
        self._memory.look(live_descendants(os.getpid()))

    def live(self) -> dict[int, ProcessEntry]:
        """Return the live processes."""
        return live_descendants(os.getpid())

    def may_hold(self, pid: int) -> bool:
        """Whether a signal's sender may be a process of the program; True if the sender has ended."""
        if pid == 0:
            return False  # outside of this process's PID namespace
        entry = read_entry(pid)
        return entry is None or entry.has_ended or pid in live_descendants(os.getpid())

    def signal_all(self, signal_number: int, *, spare: Collection[int] = ()) -> int:
        """Signal every live process once, except pids in `spare`; return the number of live processes."""
        return _signal_each(signal_number, spare, self.live)

    def kill_all(self) -> None:
        """Kill all processes; the caller must still reap them.

        Then remove the shared memory of these processes.
        """
        _kill_each(self.live, when_stopped=self.look)
        self._memory.remove_unused()


def _kill_each(descendants: Callable[[], dict[int, ProcessEntry]], when_stopped: Callable[[], object] = int) -> None:
    """Kill all processes found by `descendants`; stop them first, so that no process can fork meanwhile."""
    deadline = time.monotonic() + _KILL_LIMIT_S
    stopped: set[tuple[int, int]] = set()
    while time.monotonic() < deadline:
        new = {(pid, entry.started_at) for pid, entry in descendants().items()} - stopped
        if not new:
            break
        for pid, _ in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    when_stopped()
    while (alive := descendants()) and time.monotonic() < deadline:
        for pid in alive:
            _signal(pid, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_S)


def _signal_each(signal_number: int, spare: Collection[int], descendants: Callable[[], dict[int, ProcessEntry]]) -> int:
    """Signal each live descendant once, except pids in `spare`; return the number of live descendants.

    Scans until a scan finds no new process, because processes may fork while they are being signalled. Processes that
    started after the call are skipped: handlers of the signal start them to clean up.
    """
    newest = _ticks_now()
    seen: set[tuple[int, int]] = set()
    while True:
        new = [
            (pid, entry.started_at)
            for pid, entry in descendants().items()
            if entry.started_at <= newest and (pid, entry.started_at) not in seen
        ]
        if not new:
            return len(seen)
        for pid, started_at in new:
            if pid not in spare:
                _signal(pid, signal_number)
            seen.add((pid, started_at))


def _own_pid_in_proc() -> int:
    """Return the caller's pid in /proc, which differs from `os.getpid` if /proc is the machine's."""
    return int(os.readlink("/proc/self"))


def _ticks_now() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _signal(pid: int, signal_number: int) -> None:
    # Ended meanwhile, or runs as another user by a set-user-id program, which a plain process cannot signal.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal_number)
