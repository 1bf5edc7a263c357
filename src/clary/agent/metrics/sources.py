"""The interface of sources of measured values, and small sources: the agent, the machine, the host's disk.

Where: `sampling` reads every source for each row and combines the values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from clary.agent.metrics.kept_files import KeptFile, OpenFiles, read_list
from clary.agent.metrics.proc_texts import CpuTimes, parse_available_memory, parse_cpu_times, parse_stat

Values = dict[str, float]  # name of a series -> measured value

PERCENT = 100.0
_SLOW_INTERVAL_S = 1.0  # between reads of values that change slowly or are expensive
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Source(Protocol):
    """A source of measured values."""

    def read(self, now_s: float) -> Values:
        """Return the values at a monotonic time, with rates since the last call; the first call has no rates."""

    def close(self) -> None:
        """Free the source's files and processes; a second call does nothing."""


class Slowly:
    """Decides when an expensive read is due again."""

    def __init__(self, interval_s: float = _SLOW_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._next_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Return whether the read is due, and if so restart the interval."""
        # Better a tenth of the interval early than a whole row late.
        if self._next_s is not None and now_s < self._next_s - self._interval_s / 10:
            return False
        self._next_s = now_s + self._interval_s
        return True


class AgentSource:
    """`agent/...`: resources used by this host's agent.

    Child processes do not count, because the program and the installers of requirements are children.
    """

    def __init__(self) -> None:
        self._stat = KeptFile("/proc/self/stat", OpenFiles(1))
        self._last: tuple[float, float] | None = None  # (monotonic time, seconds of processor time)

    def read(self, now_s: float) -> Values:
        """Return processor time and memory."""
        text = self._stat.read()
        if not text:
            return {}
        stat = parse_stat(text)
        cpu_s = stat.cpu_ticks / _TICKS_PER_S
        values = {"agent/memory_bytes": float(stat.memory_pages * _PAGE_BYTES)}
        if self._last is not None and now_s > self._last[0]:
            used_s = max(0.0, cpu_s - self._last[1])
            values["agent/cpu_percent"] = round(PERCENT * used_s / (now_s - self._last[0]), 1)
        self._last = (now_s, cpu_s)
        return values

    def close(self) -> None:
        """Close the file."""
        self._stat.close()


class MachineSource:
    """`machine/...`: resources used and available on this machine, other jobs included."""

    def __init__(self) -> None:
        self._slowly = Slowly()
        self._last: tuple[float, CpuTimes] | None = None
        self._values: Values = {}

    def read(self, now_s: float) -> Values:
        """Return processor time of all processors together and available memory; once per second."""
        if self._slowly.is_due(now_s):
            self._values = self._measured(now_s)
        return self._values

    def close(self) -> None:
        """Do nothing, because the source has no open files."""

    def _measured(self, now_s: float) -> Values:
        values: Values = {}
        memory = read_list("/proc/meminfo")
        if memory:
            values["machine/memory_available_bytes"] = float(parse_available_memory(memory)[1])
        text = KeptFile("/proc/stat").read()
        if text:
            times = parse_cpu_times(text)
            if self._last is not None and now_s > self._last[0]:
                then_s, before = self._last
                per_tick = PERCENT / _TICKS_PER_S / (now_s - then_s)
                for name, now, then in (
                    ("cpu", times.busy, before.busy),
                    ("cpu_iowait", times.iowait, before.iowait),
                    ("cpu_steal", times.steal, before.steal),
                ):
                    # The kernel's counter of idle time sometimes decreases.
                    values[f"machine/{name}_percent"] = round(max(0, now - then) * per_tick, 1)
            self._last = (now_s, times)
        return values


class DiskSource:
    """`host/disk_...`: the file system of a host's /opt/ml, and usually of its /tmp; once per second.

    Args:
        folders: folders of the host on this machine; the first existing folder is used.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._slowly = Slowly()
        self._values: Values = {}

    def read(self, now_s: float) -> Values:
        """Return the use of the disk as in df: space reserved for root does not count in the percentage."""
        if self._slowly.is_due(now_s):
            self._values = self._measured()
        return self._values

    def close(self) -> None:
        """Do nothing, because the source has no open files."""

    def _measured(self) -> Values:
        found = next(filter(None, map(_disk_of, self._folders)), None)
        if found is None:
            return {}
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        available = found.f_bavail * found.f_frsize
        values = {"host/disk_used_bytes": float(used), "host/disk_available_bytes": float(available)}
        if used + available > 0:
            values["host/disk_used_percent"] = round(PERCENT * used / (used + available), 2)
        return values


def _disk_of(folder: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:  # the folder does not exist yet, or was removed
        return None
