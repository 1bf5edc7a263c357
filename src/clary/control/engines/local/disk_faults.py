"""Fills the private disk of a host of a rehearsal, and restores its free space.

Run: `python -m clary.control.engines.local.disk_faults AGENT_PID FOLDER BYTES` resizes the disk; `fill` and `free` run
this command, because joining a mount namespace would change the calling process. BYTES is the disk's new size, 0 for
the size of its present content.

[Note: full without filling]
The disk is a tmpfs (`agent.host.mounts.own_disk`): it is shrunk to the size of its content. Programs that write get
ENOSPC from the kernel, as on any full disk; removing a file frees its size, as on any disk; and no memory is used.
Source: Documentation/filesystems/tmpfs.rst; mount(2), MS_REMOUNT.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import sys
from pathlib import Path

from clary.base.errors import EngineError
from clary.contract.launch_plan import LaunchPlan
from clary.contract.rehearsals import DISK_FOLDER
from clary.control.engines.local import attempt_record
from clary.control.engines.local.inside import run_inside
from clary.control.engines.local.network import namespaces

_ROUNDS = 100  # retries: a program that writes or removes files meanwhile changes the measured size
_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 2, 4, 32


async def fill(plan: LaunchPlan, host: str) -> None:
    """Leave no free space on the disk of `host`; a full disk stays unchanged.

    Raises: EngineError if the host has no disk of its own, or its agent has ended.
    """
    await _change(plan, host, 0)


async def free(plan: LaunchPlan, host: str) -> None:
    """Restore the disk of `host` to its planned size; raises as `fill`."""
    await _change(plan, host, _planned_bytes(plan, host))


def _planned_bytes(plan: LaunchPlan, host: str) -> int:
    size_bytes = plan.host(host).disk_bytes
    if size_bytes is None:
        raise EngineError(f"job {plan.job_name}: {host} has no disk of its own; the machine's is not filled")
    return size_bytes


async def _change(plan: LaunchPlan, host: str, size_bytes: int) -> None:
    _planned_bytes(plan, host)
    agent = (await asyncio.to_thread(attempt_record.living_agents, Path(plan.pool_folder))).get(host)
    if agent is None:
        raise EngineError(f"job {plan.job_name}: the agent of {host}, which holds the host's disk, is gone")
    folder = f"{plan.work_folder}/{host}/{DISK_FOLDER}"
    await run_inside(
        __name__, str(agent.pid), folder, str(size_bytes), doing=f"job {plan.job_name}: changing the disk of {host}"
    )


def main(arguments: list[str]) -> int:
    """Resize a host's disk from inside its mount namespace, for `fill` or `free`; errors are printed.

    Args:
        arguments: pid of the host's agent, folder of the disk, the disk's new size in bytes; 0 leaves no free space.
    Returns: 0, or 1 after an OSError or EngineError.
    """
    pid, folder, size = arguments
    try:
        descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        namespaces.setns(descriptor, _CLONE_NEWNS)
        # The folder must be the root of a file system, so that it is never the machine's own.
        if os.lstat(folder).st_dev == os.lstat(os.path.dirname(folder)).st_dev:
            raise EngineError(f"{folder} is no disk of its own")
        _resize(folder, int(size))
    except (OSError, EngineError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _resize(folder: str, size_bytes: int) -> None:
    for _ in range(_ROUNDS):
        facts = os.statvfs(folder)
        used_bytes = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
        try:
            _remount(folder, size_bytes or used_bytes)
        except OSError as error:
            if size_bytes or error.errno != errno.EINVAL:  # the kernel's error for a size below the present content
                raise
            continue
        if size_bytes or os.statvfs(folder).f_bfree == 0:
            return
    raise EngineError(f"{folder} is changed by its program faster than it could be filled")


def _remount(folder: str, size_bytes: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_MS_REMOUNT | _MS_NOSUID | _MS_NODEV)
    if libc.mount(b"none", os.fsencode(folder), None, flags, f"size={size_bytes}".encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"remounting {folder} with {size_bytes} bytes failed: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
