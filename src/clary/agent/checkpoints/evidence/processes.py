"""The processes of the program: living processes, and the ends of processes.

Where: the witness queries it at every look (scan of the folder) and after every close. A process that is seen alive,
and not ending, after a file was closed did not close it by ending: the kernel marks a process as ending before it
closes the process's files.

The exit status of a zombie is read from /proc, and the status of a reaped process from its pidfd, which has it from
Linux 6.15 on; older kernels give no exit status of a reaped process. A process that began and ended between two looks
remains unknown.

Source: proc(5); PIDFD_GET_INFO of linux/pidfd.h.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from clary.agent.checkpoints.evidence.observations import Death
from clary.base.clock import Clock
from clary.base.processes import live_descendants, parse_stat, read_entry

_MAX_PIDFDS = 256
_MAX_DEATHS = 1000  # limit of remembered deaths
_INFO_BYTES = 64
_PIDFD_GET_INFO = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11  # _IOWR(0xFF, 11, struct pidfd_info)
_INFO_EXIT = 1 << 3
_EXIT_OFFSET = 60  # offset of exit_code, after mask, cgroupid and eleven ids


@dataclass(kw_only=True)
class _Living:
    name: str
    started_at: int
    alive_s: float
    is_exiting: bool
    pidfd: int | None


class ProgramProcesses:
    """The program's processes, living and dead; used only under the witness's lock.

    Attributes:
        first_pid: pid of the program's first process on this machine; None: no process is known.
        newest_s: when a process was last seen alive.
    """

    def __init__(self, clock: Clock) -> None:
        self.first_pid: int | None = None
        self.newest_s = -inf
        self._clock = clock
        self._living: dict[int, _Living] = {}
        self._num_pidfds = 0
        self._deaths: list[Death] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that were alive at the last look."""
        return tuple(self._living)

    @property
    def deaths(self) -> Sequence[Death]:
        """Processes that have ended or are ending, except processes known to have ended with 0."""
        dying = [
            Death(pid=pid, name=one.name, alive_s=one.alive_s, noticed_s=self._clock.monotonic(), wait_status=None)
            for pid, one in self._living.items()
            if one.is_exiting
        ]
        return [*self._deaths, *dying]

    def find(self) -> None:
        """Find new processes of the program in the machine's process list."""
        if self.first_pid is None:
            return
        now_s = self._clock.monotonic()
        for pid, entry in live_descendants(self.first_pid).items():
            known = self._living.get(pid)
            if known is not None and known.started_at == entry.started_at:
                continue
            if known is not None:
                self._bury(pid)
            self._living[pid] = _Living(
                name=_name_of(pid),
                started_at=entry.started_at,
                alive_s=-inf if entry.is_exiting else now_s,
                is_exiting=entry.is_exiting,
                pidfd=self._open_pidfd(pid),
            )

    def check(self) -> None:
        """Check which known processes are still alive."""
        for pid, process in list(self._living.items()):
            now_s = self._clock.monotonic()
            entry = read_entry(pid)
            if entry is None or entry.has_ended or entry.started_at != process.started_at:
                self._bury(pid)
                continue
            process.is_exiting = entry.is_exiting
            if not entry.is_exiting:
                process.alive_s = self.newest_s = now_s

    def close(self) -> None:
        """Close the pidfds; a second call does nothing."""
        for process in self._living.values():
            self._close_pidfd(process)
        self._living.clear()

    def _bury(self, pid: int) -> None:
        process = self._living.pop(pid)
        status = _status_of_zombie(pid, process.started_at)
        if status is None:
            status = _status_of_reaped(process.pidfd)
        self._close_pidfd(process)
        if status != 0:
            death = Death(
                pid=pid,
                name=process.name,
                alive_s=process.alive_s,
                noticed_s=self._clock.monotonic(),
                wait_status=status,
            )
            self._deaths = [*self._deaths, death][-_MAX_DEATHS:]

    def _open_pidfd(self, pid: int) -> int | None:
        if self._num_pidfds >= _MAX_PIDFDS:
            return None
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return None
        self._num_pidfds += 1
        return descriptor

    def _close_pidfd(self, process: _Living) -> None:
        if process.pidfd is not None:
            os.close(process.pidfd)
            process.pidfd = None
            self._num_pidfds -= 1


def _status_of_zombie(pid: int, started_at: int) -> int | None:
    """Return the wait(2) status of a zombie; None for any other process."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    entry = parse_stat(line)
    if entry.started_at != started_at or not entry.has_ended:
        return None
    return int(line.split()[-1])  # exit_code, the last field


def _status_of_reaped(pidfd: int | None) -> int | None:
    """Return the wait(2) status of a reaped process; None if the kernel does not have it."""
    if pidfd is None:
        return None
    info = bytearray(_INFO_BYTES)
    struct.pack_into("Q", info, 0, _INFO_EXIT)
    with contextlib.suppress(OSError):
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
        if struct.unpack_from("Q", info, 0)[0] & _INFO_EXIT:
            return int(struct.unpack_from("i", info, _EXIT_OFFSET)[0])
    return None


def _name_of(pid: int) -> str:
    try:
        return ascii(Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip())[1:-1]
    except OSError:
        return "gone"
