"""Detection of an idle process: it has neither computed nor waited for a processor or a disk.

Where: `zygote_process`, while it waits for messages of the standby interpreter.

Idleness is counted in calls of `look`, not in seconds: a busy machine delays the watching process as much as the
watched process, so the calls become less frequent.
Source: proc(5), /proc/PID/stat: state, utime, stime.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

_STATE_FIELD, _UTIME_FIELD, _STIME_FIELD = 0, 11, 12  # indexes of fields after the command's closing bracket
_WANTING = frozenset("RD")  # states of a process that wants a processor, a disk or swapped memory


class Activity(NamedTuple):
    """State and CPU time of a process at one moment, from /proc."""

    state: str  # letter of the state
    cpu_ticks: int  # CPU time so far


def read_activity(pid: int) -> Activity | None:
    """Return state and CPU time of a process; None if /proc lacks it or belongs to another PID namespace."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None  # the host has the machine's /proc, where this pid is another process
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Activity(fields[_STATE_FIELD].decode(), int(fields[_UTIME_FIELD]) + int(fields[_STIME_FIELD]))
    except OSError:
        return None


class Standstill:
    """Counts the consecutive checks that find one process idle."""

    def __init__(self, pid: int, *, read: Callable[[int], Activity | None] = read_activity) -> None:
        self._pid = pid
        self._read = read
        self._last: Activity | None = read(pid)
        self._num_idle = 0

    def look(self) -> int:
        """Check the process once; return the number of consecutive checks that found it idle."""
        now, before = self._read(self._pid), self._last
        self._last = now
        is_idle = (
            now is not None and before is not None and now.cpu_ticks == before.cpu_ticks and now.state not in _WANTING
        )
        self._num_idle = self._num_idle + 1 if is_idle else 0
        return self._num_idle
