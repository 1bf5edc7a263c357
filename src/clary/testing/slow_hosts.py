"""Slows down one host of a running job from outside the job: its processors or its reads.

    for pid in rank_processes("my-job", "algo-2"):
        limit_processors(pid, share=0.3)

Where: tests and the benchmark of verdicts. A slow link is a setting of the host's instance type (`delay_ms`). Needs
root. Limits of processors end with the host's cgroups; `ReadLimit` removes its own cgroup.
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
_LEAVE_S = 5.0  # longest time to remove the cgroup of a limit
_PAUSE_S = 0.05


def rank_processes(job_name: str, host: str) -> dict[int, int]:
    """Return pid -> rank for the ranks of a job's host; pids are those of the caller's namespace."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # the process has ended
            continue
        variables = dict(word.partition(b"=")[::2] for word in words)
        if variables.get(b"TRAINING_JOB_NAME") == job_name.encode() and variables.get(b"CURRENT_HOST") == host.encode():
            rank = variables.get(b"RANK", b"")
            if rank.isdigit():
                found[int(entry.name)] = int(rank)
    return found


def limit_processors(pid: int, *, share: float) -> None:
    """Limit the whole cgroup of a process to a share of one processor; a second call replaces the limit.

    Raises: OSError, ValueError if the host has no processor cgroup of its own.
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
    """Limits the bytes per second that processes read from a folder's disk, until `close`.

    Raises: OSError if the machine lacks blkio cgroups of version 1.
    """

    def __init__(self, name: str, folder: Path, *, bytes_s: int) -> None:
        self._group = _BLKIO / name
        self._group.mkdir()
        device = os.stat(folder).st_dev
        limit = f"{os.major(device)}:{os.minor(device)} {bytes_s}"
        (self._group / "blkio.throttle.read_bps_device").write_text(limit)

    def add(self, pids: Sequence[int]) -> None:
        """Limit processes and the children that they start from now on."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (self._group / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Move the remaining processes to the root blkio cgroup, and remove the limit."""
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
