"""A census of kernel objects and processes that a job could leave behind, in addition to the engine's own search.

Where: the tests take a census around each test. Its functions resemble `engines.local.machine_census`, which covers
shared memory, sockets and ports. The owner of an object is found by a process's ancestors and environment, or by a
cgroup's name. Source: proc(5), sysvipc(7), unix(7).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from clary.base.kernel_files import read_at_most
from clary.base.processes import MAX_ARGUMENT_BYTES, ProcessEntry, ProcessId, read_environment, read_process_list
from clary.control.engines.local.cleaning import mount_entries
from clary.control.engines.local.leftover_things import Kind, Thing
from clary.control.engines.local.machine_census import listening_sockets, names_in, socket_inodes, user_name

REGISTERED_NAMESPACES_FOLDER = "/run/netns"
_COMMAND_CHARACTERS = 120
_IPC_TABLES = (("shm", Kind.IPC_MEMORY), ("sem", Kind.IPC_SEMAPHORES), ("msg", Kind.IPC_QUEUE))


def processes(pids: Iterable[int], entries: Mapping[int, ProcessEntry] | None = None) -> list[Thing]:
    """Return the existing processes among `pids` with their command lines; a zombie has the kind ZOMBIE."""
    entries = read_process_list() if entries is None else entries
    found = []
    for pid in pids:
        entry = entries.get(pid)
        if entry is not None:
            kind = Kind.ZOMBIE if entry.has_ended else Kind.PROCESS
            holder, identity = (entry.parent if entry.has_ended else 0), str(entry.started_at)
            found.append(Thing(kind=kind, name=str(pid), identity=identity, holder=holder, detail=command_text(pid)))
    return found


def held_namespaces(pids: Iterable[int]) -> list[Thing]:
    """Return the network namespaces of `pids` except the caller's own, each with one process in it."""
    own = _namespace("self")
    holders: dict[int, int] = {}
    for pid in sorted(pids):
        inode = _namespace(str(pid))
        if inode is not None and inode != own:
            holders.setdefault(inode, pid)
    return [
        Thing(kind=Kind.HELD_NAMESPACE, name=f"net:[{inode}]", holder=pid, owner=f"process {pid}")
        for inode, pid in holders.items()
    ]


def registered_namespaces() -> list[Thing]:
    """Return the network namespaces that have a name on the machine."""
    return [Thing(kind=Kind.REGISTERED_NAMESPACE, name=name) for name in names_in(REGISTERED_NAMESPACES_FOLDER)]


def mounts(mountinfo: str | None = None) -> list[Thing]:
    """Return every mount of this mount namespace."""
    return [
        Thing(kind=Kind.MOUNT, name=entry.point, identity=entry.number, detail=entry.file_system)
        for entry in mount_entries(mountinfo)
    ]


def cgroups(family_folder: str, *, top: str = "/sys/fs/cgroup") -> list[Thing]:
    """Return the cgroups in every folder named `family_folder`, in every hierarchy, at any depth."""
    found = []
    for folder, names, _ in os.walk(top):
        if os.path.basename(folder) == family_folder:
            found += [Thing(kind=Kind.CGROUP, name=f"{folder}/{name}") for name in names]
            names.clear()
    return found


def links() -> list[Thing]:
    """Return the network links of this thread's namespace."""
    return [Thing(kind=Kind.LINK, name=name, identity=str(index)) for index, name in socket.if_nameindex()]


def ipc_things(tables: Path = Path("/proc/sysvipc")) -> list[Thing]:
    """Return the System V objects of this IPC namespace; shared memory with the process that created it."""
    found = []
    for table, kind in _IPC_TABLES:
        try:
            header, *rows = (tables / table).read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            continue
        columns = header.split()
        for row in rows:
            values = dict(zip(columns, row.split(), strict=False))
            number = values.get("shmid") or values.get("semid") or values["msqid"]
            maker = values.get("cpid", "0")
            owner = f"process {maker}" if maker != "0" else ""
            size = f"{values['size']} bytes, " if "size" in values else ""
            detail = f"{size}user {user_name(int(values['uid']))}"
            found.append(Thing(kind=kind, name=number, identity=values.get("ctime", ""), owner=owner, detail=detail))
    return found


def socket_paths(pids: Iterable[int]) -> set[str]:
    """Return the paths at which `pids` listen."""
    inodes = {inode for pid in pids for inode in socket_inodes(pid)}
    return {path for path, inode in listening_sockets().items() if inode in inodes}


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables with which a process was started; empty if it has ended or belongs to another user."""
    pairs = read_environment(pid).decode(errors="surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def command_text(pid: int) -> str:
    """Return the beginning of a process's command line; without a command line, its name in brackets."""
    with contextlib.suppress(OSError):
        arguments = read_at_most(f"/proc/{pid}/cmdline", MAX_ARGUMENT_BYTES)
        text = arguments.replace(b"\0", b" ").decode(errors="replace").strip()
        if not text:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                text = f"[{file.read().strip()}]"
        return text[:_COMMAND_CHARACTERS]
    return ""


def cgroups_of(pid: int) -> set[str]:
    """Return the names of the cgroups that a process is in, the last part of each path."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        return {os.path.basename(line.rstrip("\n").split(":", 2)[2]) for line in file}
    return set()


def is_process(pid: int) -> bool:
    """Whether a process of this id is alive."""
    return ProcessId.of(pid) is not None


def _namespace(process: str) -> int | None:
    try:
        return os.stat(f"/proc/{process}/ns/net").st_ino
    except OSError:
        return None
