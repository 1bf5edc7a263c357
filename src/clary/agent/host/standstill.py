"""Whether a process that is waited for does nothing: it has neither computed nor waited for a processor or a disk.

Where: `zygote_process`, between looks at what the interpreter that stands by has to say.

Counted in looks, not in time: whoever looks is held up on a busy machine like the process itself, and looks less often.
Source: proc(5), /proc/PID/stat: state, utime, stime.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

_STATE_FIELD, _UTIME_FIELD, _STIME_FIELD = 0, 11, 12  # behind the command's closing bracket
_WANTING = frozenset("RD")  # a processor, a disk or swapped memory


class Activity(NamedTuple):
    """State and CPU time of a process at one moment, as /proc shows them."""

    state: str  # one letter
    cpu_ticks: int  # that it has computed so far


def read_activity(pid: int) -> Activity | None:
    """Return state and CPU time of a process; None where /proc lacks it or belongs to another process namespace."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None  # the machine's /proc in a host that was refused one of its own: the number means another
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Activity(fields[_STATE_FIELD].decode(), int(fields[_UTIME_FIELD]) + int(fields[_STIME_FIELD]))
    except OSError:
        return None


class Standstill:
    """Counts looks at one process."""

    def __init__(self, pid: int, *, read: Callable[[int], Activity | None] = read_activity) -> None:
        self._pid = pid
        self._read = read
        self._last: Activity | None = read(pid)
        self._num_idle = 0

    def look(self) -> int:
        """Look once; return at how many looks in a row the process had done nothing since the one before."""
        now, before = self._read(self._pid), self._last
        self._last = now
        is_idle = (
            now is not None and before is not None and now.cpu_ticks == before.cpu_ticks and now.state not in _WANTING
        )
        self._num_idle = self._num_idle + 1 if is_idle else 0
        return self._num_idle
