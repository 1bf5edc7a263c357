"""A disk for one host, which can be full while the machine's disk is not.

Where: `supervisor.wiring` makes one for each host of a rehearsal (`clary rehearse`) whose plan has `disk_bytes`; the
service fills it (`engines.local.disk_faults`). It needs root.

    HOST/disk/            a tmpfs of that size, in the agent's own mount namespace
    HOST/disk/used        one block: an empty tmpfs could not be filled up
    HOST/disk/ml/         bind-mounted at HOST/ml, and for the program at /opt/ml

The mounts end with the last process in the namespace, so a killed agent leaves no mounts. Files that the agent puts
into the tree for the program - large input data, and messages between Clary and the program - stay on the machine's
disk: a program whose disk is full can still receive a stop notice and record its failure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clary.agent.host import kernel
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import Resources
from clary.contract.rehearsals import DISK_FOLDER

LARGEST_SHARE = 0.5  # share of the free memory
_USED_BYTES = 4096
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV
_MIB = 1024 * 1024


def enter_own_mounts() -> None:
    """Move this single-threaded process to a mount namespace that receives the machine's later mounts.

    Where: the agent's first step with the option `--own-mounts`. A failure is recorded, and `OwnDisk.mount` reports it.
    """
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    except OSError as error:
        _mounts.why_shared = f"it could not be made: {error}"
    else:
        _mounts.owner_pid = os.getpid()


@dataclass
class _Mounts:
    """The owner of this process's mount namespace."""

    owner_pid: int | None = None  # the process that made the namespace; its children share it
    why_shared: str = "the agent has not made one"


_mounts = _Mounts()


class OwnDisk:
    """The disk of one host.

    Args:
        host_folder: the host's folder on the machine.
        ml_folder: the host's `/opt/ml`, inside `host_folder`.
        size_bytes: of the disk.
        outside: folders of `ml_folder` that stay on the machine's disk.
    """

    def __init__(self, host_folder: Path, *, ml_folder: Path, size_bytes: int, outside: Sequence[Path]) -> None:
        self._folder = host_folder / DISK_FOLDER
        self._ml = ml_folder
        self._size_bytes = size_bytes
        self._outside = tuple(outside)
        self._mounted: list[Path] = []

    def mount(self, *, available_bytes: int | None) -> None:
        """Mount the disk; refused unless this process is in a mount namespace of its own (`enter_own_mounts`).

        Args:
            available_bytes: the machine's free memory, which the disk uses; None if unknown.
        Raises: AgentError; the disk is then unmounted again.
        """
        if available_bytes is not None and self._size_bytes > available_bytes * LARGEST_SHARE:
            raise AgentError(
                f"{self._folder.parent.name}: its own disk of {self._size_bytes // _MIB} MiB would take more "
                f"than half of this machine's free memory, which is {available_bytes // _MIB} MiB; request a "
                "smaller disk",
                fault=Fault.USER,
            )
        if _mounts.owner_pid != os.getpid():
            raise AgentError(
                f"{self._folder.parent.name}: a disk of its own needs a mount namespace of the agent's own, "
                f"else it would be mounted for the whole machine; {_mounts.why_shared}. Such disks need a "
                "service that runs as root and is allowed to mount file systems"
            )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            options = f"size={self._size_bytes},mode=755"
            kernel.mount("tmpfs", str(self._folder), kind="tmpfs", flags=_FLAGS, options=options)
            self._mounted.append(self._folder)
            (self._folder / "used").write_bytes(bytes(_USED_BYTES))
            seen = self._folder / "ml"
            for place in self._outside:
                inside = seen / place.relative_to(self._ml)
                for folder in (place, inside):
                    folder.mkdir(parents=True, exist_ok=True)
                kernel.mount(str(place), str(inside), flags=kernel.MS_BIND)
            self._show(seen, self._ml)
        except OSError as error:
            self.close()
            raise AgentError(
                f"{self._folder.parent.name}: its own disk of {self._size_bytes} bytes could not be made: {error}"
            ) from error

    def hold(self, folder: Path) -> None:
        """Move another, empty folder of the host to the disk. Raises: AgentError."""
        inside = self._folder / folder.name
        try:
            inside.mkdir()
            self._show(inside, folder)
        except OSError as error:
            raise AgentError(f"{folder} could not be put on the host's own disk: {error}") from error

    def beside(self, resources: Resources) -> Resources:
        """Return the host's resources with its memory limit raised by the size of its disk, which is in memory."""
        if resources.memory_bytes is None:
            return resources
        return replace(resources, memory_bytes=resources.memory_bytes + self._size_bytes)

    def close(self) -> None:
        """Unmount the disk, which discards the files on it; a second call does nothing."""
        while self._mounted:
            with contextlib.suppress(OSError):  # the mount ends with the agent anyway
                kernel.unmount(str(self._mounted.pop()), flags=kernel.MNT_DETACH)

    def _show(self, source: Path, target: Path) -> None:
        kernel.mount(str(source), str(target), flags=kernel.MS_BIND | kernel.MS_REC)
        self._mounted.append(target)
