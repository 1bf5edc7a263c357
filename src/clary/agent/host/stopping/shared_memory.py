"""Shared memory that plain processes leave on the machine: recorded while they live, removed after their end.

Where: `census.DescendantCensus` calls it periodically and at the end. Hosts with namespaces do not need it: /dev/shm
and the System V objects of a host vanish with it. Plain processes share the machine's /dev/shm, where segments do not
show their creator. So a segment counts as the program's only if it did not exist when the program started and one of
its processes created it or mapped it for writing. It is removed only if no process still uses it. Segments that a
process creates and leaves between two calls of `look` are missed; `clary doctor` lists unused segments. The module has
few imports, because the first process of a host imports it.
Source: shm_overview(7), sysvipc(7), proc(5) for /proc/PID/maps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from clary.agent.host import kernel

SHARED_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - where the C library and the kernel keep it
IPC_TABLE = "/proc/sysvipc/shm"
_NUM_MAPS_FIELDS = 6
_Identity = tuple[int, int]  # device and inode


class ProgramMemory:
    """The segments that a program has made.

    Args:
        folder: folder of the named segments.
        ipc_table: the kernel's list of System V segments.
    """

    def __init__(self, folder: str = SHARED_MEMORY_FOLDER, ipc_table: str = IPC_TABLE) -> None:
        self._folder = folder
        self._ipc_table = ipc_table
        self._strangers = {identity for name in _names_in(folder) if (identity := _identity(f"{folder}/{name}"))}
        self._named: dict[str, _Identity] = {}
        self._numbered: dict[int, str] = {}  # segment id -> time of its last change, which identifies it

    def look(self, pids: Iterable[int]) -> None:
        """Record the shared memory that these processes of the program use now."""
        wanted = set(pids)
        for pid in wanted:
            for path in self._mapped(pid, for_writing=True):
                identity = _identity(path)
                if identity is not None and identity not in self._strangers:
                    self._named[path] = identity
        for number, row in self._segments().items():
            if int(row["cpid"]) in wanted:
                self._numbered[number] = row["ctime"]

    def remove_unused(self) -> list[str]:
        """Remove recorded shared memory that no process uses; return the names."""
        removed = []
        used = self._used_by_anybody() if self._named else set()
        for path, identity in self._named.items():
            if path not in used and _identity(path) == identity:
                with contextlib.suppress(OSError):  # owned by another user, or removed meanwhile
                    os.unlink(path)
                    removed.append(path)
        segments = self._segments() if self._numbered else {}
        for number, changed_at in self._numbered.items():
            row = segments.get(number)
            if row is not None and row["ctime"] == changed_at and row["nattch"] == "0":
                with contextlib.suppress(OSError):
                    kernel.remove_shared_memory(number)
                    removed.append(str(number))
        self._named.clear()
        self._numbered.clear()
        return removed

    def _used_by_anybody(self) -> set[str]:
        """Return the recorded segments that any process uses; no other names are kept: a stranger may have many."""
        used: set[str] = set()
        for name in os.listdir("/proc"):
            if name.isdecimal():
                used.update(path for path in self._mapped(int(name)) if path in self._named)
                # ended, or owned by another user
                with contextlib.suppress(OSError), os.scandir(f"/proc/{name}/fd") as descriptors:
                    for descriptor in descriptors:
                        with contextlib.suppress(OSError):
                            if (path := os.readlink(descriptor.path)) in self._named:
                                used.add(path)
        return used

    def _mapped(self, pid: int, *, for_writing: bool = False) -> Iterator[str]:
        """Yield the segment of each of a process's mappings; with `for_writing` only of shared writable mappings."""
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps,
        ):
            for line in maps:
                fields = line.rstrip("\n").split(maxsplit=_NUM_MAPS_FIELDS - 1)
                if len(fields) < _NUM_MAPS_FIELDS or not fields[5].startswith(f"{self._folder}/"):
                    continue
                rights = fields[1]  # rwxs, or rwxp for a private mapping
                if not for_writing or (rights[1] == "w" and rights[3] == "s"):
                    yield fields[5]

    def _segments(self) -> dict[int, dict[str, str]]:
        try:
            with open(self._ipc_table, encoding="ascii") as table:
                header, *rows = table.read().splitlines()
        except (OSError, ValueError):  # a kernel without System V IPC
            return {}
        columns = header.split()
        found = {}
        for row in rows:
            values = dict(zip(columns, row.split(), strict=False))
            found[int(values["shmid"])] = values
        return found


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _identity(path: str) -> _Identity | None:
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
