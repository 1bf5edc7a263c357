"""Processes told apart by id and start time, so that a reused id is never taken for the one we started.

Where: the service's record, the engine's agents, the object store: everything that is signalled later by its id.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

_START_TIME_FIELD = 19  # of /proc/PID/stat, counted from the field behind the command's closing bracket


@dataclass(frozen=True)
class ProcessId:
    """One process.

    Args:
        pid: process id.
        started: start time in clock ticks since boot, as text (field 22 of /proc/PID/stat, proc(5)).
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Identify the process that has this id now; None if there is none."""
        started = _start_time(pid)
        return None if started is None else cls(pid, started)

    def is_alive(self) -> bool:
        """Whether this very process still exists and is no zombie."""
        return _start_time(self.pid) == self.started

    def terminate(self) -> bool:
        """Send SIGTERM; False if the process is gone."""
        return self._signal(signal.SIGTERM)

    def kill(self) -> bool:
        """Send SIGKILL; False if the process is gone."""
        return self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def _start_time(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[_START_TIME_FIELD]
