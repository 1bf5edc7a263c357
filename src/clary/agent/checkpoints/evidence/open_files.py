"""Processes that can still write to a file without opening it: a lease detects them, /proc has their names.

[Note: leases] The kernel grants a read lease on a file only while no process has it open for writing. It counts
descriptors of every process in every namespace, inherited descriptors, descriptors in transit through a socket, and
shared memory maps whose descriptor was closed long ago. The lease is released at once. If a program opens the file for
writing in that moment, its `open` waits only for the release; the signal that reports the open is ignored.

Leases need the file's owner or CAP_LEASE, and a file system that supports them. On a file system that other machines
share, leases do not show the writers on those machines. Then the descriptors and maps of the program's processes are
searched: a file found there is HELD, any other file is UNKNOWN. A process with more than MAX_MAPS_BYTES of maps is
searched in part: a file that it holds only beyond stays UNKNOWN.

Source: fcntl(2) F_SETLEASE, F_SETSIG; proc(5) for /proc/PID/fd, fdinfo and maps.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from clary.agent.checkpoints.evidence.observations import Hold
from clary.base.kernel_files import lines_at_most, read_at_most

# For the 65,530 maps that the kernel allows a process, with names of usual length; a name may have 4 KiB.
MAX_MAPS_BYTES = 32 * 1024 * 1024

# Types as in /proc/self/mountinfo. FUSE is included because the storage behind it is unknown.
_SHARED_TYPES = (
    "nfs",
    "cifs",
    "smb",
    "ceph",
    "lustre",
    "gpfs",
    "glusterfs",
    "9p",
    "afs",
    "beegfs",
    "fuse",
    "ocfs2",
    "gfs2",
)
_NUM_MAP_FIELDS = 5
_FDINFO_BYTES = 4096  # the flags stand at the beginning; a list of locks, of any length, follows


@dataclass(frozen=True)
class FileId:
    """A file by device and inode, independent of its names."""

    device: int
    inode: int


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that has a file open or mapped for writing."""

    pid: int
    name: str

    @property
    def words(self) -> str:
        """Return the process's pid and name as a phrase."""
        return f"process {self.pid} ({self.name})"


def probe(descriptor: int) -> Hold:
    """Probe with a lease whether any other descriptor has a file open for writing; UNKNOWN without leases."""
    try:
        # The default signal for a broken lease would end this process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return Hold.HELD
    except OSError:
        return Hold.UNKNOWN
    with contextlib.suppress(OSError):  # the close of the descriptor releases the lease too
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return Hold.FREE


def file_id(descriptor: int) -> FileId:
    """Return the id of a descriptor's file. Raises: OSError."""
    status = os.fstat(descriptor)
    return FileId(status.st_dev, status.st_ino)


def is_shared_with_machines(device: int, *, mounts: str | None = None) -> bool:
    """Whether other machines, whose descriptors this kernel does not know, may write to a file system."""
    text = mounts if mounts is not None else _read_text("/proc/self/mountinfo")
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [wanted]:
            return after.split()[0].startswith(_SHARED_TYPES)
    return False


def find_holders(files: Collection[FileId], pids: Iterable[int]) -> dict[FileId, list[Holder]]:
    """Return file -> processes of `pids` that have it open or mapped for writing; skip unreadable processes."""
    found: dict[FileId, list[Holder]] = {}
    wanted = set(files)
    if not wanted:
        return found
    for pid in pids:
        for file in {*_open_for_writing(pid, wanted), *_mapped_for_writing(pid, wanted)}:
            found.setdefault(file, []).append(Holder(pid=pid, name=_name_of(pid)))
    return found


def hold_of(kernel_says: Hold, holders: Collection[Holder]) -> Hold:
    """Combine the answers of the kernel and of /proc about a file. Pure."""
    if kernel_says is Hold.FREE:
        return Hold.FREE  # a holder in /proc has closed it since
    return Hold.HELD if holders else kernel_says


def _open_for_writing(pid: int, wanted: Collection[FileId]) -> Iterator[FileId]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # a process may have a million descriptors
        for entry in entries:
            with contextlib.suppress(OSError, ValueError):
                status = os.stat(f"{folder}/{entry.name}")  # status of the open file; nothing is opened
                file = FileId(status.st_dev, status.st_ino)
                if not stat.S_ISREG(status.st_mode) or file not in wanted:
                    continue
                flags = _flags(
                    read_at_most(f"/proc/{pid}/fdinfo/{entry.name}", _FDINFO_BYTES).decode("ascii", "replace")
                )
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    yield file


def _flags(text: str) -> int:
    """Return the flags of /proc/PID/fdinfo/FD. Raises: ValueError."""
    fields: Mapping[str, str] = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields.get("flags", "").strip() or "0", 8)


def _mapped_for_writing(pid: int, wanted: Collection[FileId]) -> Iterator[FileId]:
    inodes = {file.inode: file for file in wanted}
    with contextlib.suppress(OSError, ValueError):
        for line in lines_at_most(f"/proc/{pid}/maps", MAX_MAPS_BYTES):
            fields = line.split(None, _NUM_MAP_FIELDS)
            # The device is not compared: some file systems show another device here than stat does.
            if len(fields) >= _NUM_MAP_FIELDS and fields[1][1:2] == b"w" and fields[1][3:4] == b"s":
                file = inodes.get(int(fields[4]))
                if file is not None:
                    yield file


def _name_of(pid: int) -> str:
    try:
        return ascii(_read_text(f"/proc/{pid}/comm").strip())[1:-1]
    except OSError:
        return "gone"


def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
