"""Slow down one host of a running job on purpose, from the outside: its processors, its reads.

    for pid in rank_processes("my-job", "algo-2"):
        limit_processors(pid, share=0.3)

Where: tests and the benchmark of verdicts. A slow link is a setting of the host's instance type (`delay_ms`). Only root
may do this. Nothing has to be undone: limits go with the cgroups of the host; `ReadLimit` removes its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from clary.agent.host.limits.cgroups import CgroupTree, find_place

_PERIOD_US = 100_000
_BLKIO = Path("/sys/fs/cgroup/blkio")
_LEAVE_S = 5.0  # for the processes of a removed limit to end
_PAUSE_S = 0.05


def rank_processes(job_name: str, host: str) -> dict[int, int]:
    """Return pid -> rank of the processes of a job's host that have a rank, with this machine's pids."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        variables = dict(word.partition(b"=")[::2] for word in words)
        if variables.get(b"TRAINING_JOB_NAME") == job_name.encode() and variables.get(b"CURRENT_HOST") == host.encode():
            rank = variables.get(b"RANK", b"")
            if rank.isdigit():
                found[int(entry.name)] = int(rank)
    return found


def limit_processors(pid: int, *, share: float) -> None:
    """Limit the whole cgroup of a process to a share of one processor; a second call replaces the limit.

    Raises: OSError, ValueError if its host has no cgroup of its own for processors.
    """
    tree = CgroupTree()
    place = find_place("cpu", mountinfo=tree.mountinfo(), membership=tree.read(f"/proc/{pid}/cgroup"))
    quota_us = round(share * _PERIOD_US)
    if place.version == 1:
        tree.write(os.path.join(place.own, "cpu.cfs_period_us"), str(_PERIOD_US))
        tree.write(os.path.join(place.own, "cpu.cfs_quota_us"), str(quota_us))
    else:
        tree.write(os.path.join(place.own, "cpu.max"), f"{quota_us} {_PERIOD_US}")


class ReadLimit:
    """Lets processes read only so many bytes a second from the disk that a folder is on, until it is closed.

    Raises: OSError without cgroups of version 1 for disks.
    """

    def __init__(self, name: str, folder: Path, *, bytes_s: int) -> None:
        self._group = _BLKIO / name
        self._group.mkdir()
        device = os.stat(folder).st_dev
        limit = f"{os.major(device)}:{os.minor(device)} {bytes_s}"
        (self._group / "blkio.throttle.read_bps_device").write_text(limit)

    def add(self, pids: Sequence[int]) -> None:
        """Limit processes, and their later children."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (self._group / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Move the remaining processes back to their former cgroups, and remove the limit."""
        deadline_s = time.monotonic() + _LEAVE_S
        while True:
            for pid in (self._group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (_BLKIO / "cgroup.procs").write_text(pid)
            try:
                self._group.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_PAUSE_S)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
