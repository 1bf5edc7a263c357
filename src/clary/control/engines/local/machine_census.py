"""Finds shared memory, sockets and ports that were left behind; one function for each kind reads the kernel's list.

Where: the engine searches for leftovers of a released attempt, `clary doctor` for sockets and ports of the object
store; `clary.testing.census` adds the other kinds. The owner of an item is known only if the pid of its creator is
known; the owner is never guessed.
Source: proc(5), unix(7).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import islice

from clary.control.engines.local.leftover_things import Kind, Thing

SHARED_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - the machine's, which is only read
_LISTENING_FLAG = 0x10000  # flag in /proc/net/unix: __SO_ACCEPTCON
# torch names a segment after the process that made it; other libraries do not.
_NAMED_AFTER_PID = re.compile(r"torch_(\d+)_")


def shared_memory(folder: str = SHARED_MEMORY_FOLDER) -> list[Thing]:
    """Return the segments in /dev/shm; the owner is the process whose pid is in the segment's name, if any."""
    found = []
    for name in names_in(folder):
        with contextlib.suppress(OSError):
            facts = os.lstat(f"{folder}/{name}")
            named = _NAMED_AFTER_PID.match(name)
            detail = f"{facts.st_size} bytes, user {user_name(facts.st_uid)}"
            owner = f"process {named[1]}" if named else ""
            identity = f"{facts.st_ino}-{facts.st_ctime_ns}"
            found.append(
                Thing(kind=Kind.SHARED_MEMORY, name=f"{folder}/{name}", identity=identity, owner=owner, detail=detail)
            )
    return found


def shared_memory_users(pids: Iterable[int], folder: str = SHARED_MEMORY_FOLDER) -> dict[str, set[int]]:
    """Return segment -> the `pids` that have it mapped or open; processes of other users are not readable."""
    users: dict[str, set[int]] = {}
    if not names_in(folder):
        return users  # no segment, so no users: listing the files of all processes takes a millisecond for each process
    prefix = f"{folder}/"
    for pid in pids:
        for path in _files_of(pid, prefix):
            users.setdefault(path, set()).add(pid)
    return users


def dead_sockets(paths: Iterable[str]) -> list[Thing]:
    """Return the `paths` that are sockets without a listener."""
    alive = listening_sockets()
    return [Thing(kind=Kind.SOCKET, name=path) for path in paths if path not in alive and _is_socket(path)]


def listening_ports(pids: Iterable[int]) -> dict[int, set[int]]:
    """Return TCP port -> the `pids` that listen at it."""
    port_of: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as file:
            for fields in (line.split() for line in islice(file, 1, None)):
                if fields[3] == "0A":  # TCP_LISTEN
                    port_of[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    found: dict[int, set[int]] = {}
    for pid in pids:
        for inode in socket_inodes(pid):
            if inode in port_of:
                found.setdefault(port_of[inode], set()).add(pid)
    return found


def names_in(folder: str) -> list[str]:
    """Return the names in a folder in order; empty if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def user_name(number: int) -> str:
    """Return a user's name, or the user's id if there is no name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _files_of(pid: int, prefix: str) -> Iterator[str]:
    """Yield the paths below `prefix` that a process has mapped or open, some of them several times.

    One at a time: a process may have 65,530 mappings and a million descriptors, with names of 4 KiB.
    """
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith(prefix):
                    yield fields[5].rstrip("\n")
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    if (path := os.readlink(descriptor.path)).startswith(prefix):
                        yield path


def socket_inodes(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has open."""
    found = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor.path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def listening_sockets() -> dict[str, str]:
    """Return path -> inode of the Unix sockets that have a listener, without abstract ones."""
    found = {}
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        for line in islice(file, 1, None):
            fields = line.rstrip("\n").split(maxsplit=7)
            if len(fields) == 8 and not fields[7].startswith("@") and int(fields[3], 16) & _LISTENING_FLAG:
                found[fields[7]] = fields[6]
    return found


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
