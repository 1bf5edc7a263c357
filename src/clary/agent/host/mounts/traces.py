"""Detection of traces that a program leaves on its host, apart from its binds.

Where: `standing_by` calls it before a host serves another program. The host's state after all mounts for the program is
compared with its state after the program's last process has ended. New entries in folders of the host's own and the
content of /tmp and /var/tmp are removed. Any other difference is a trace: a change in an overlay of a folder of the
machine, a missing or changed file or folder of the host's own, System V objects. A host with traces serves no other
program.

A change of a file's content changes its inode or its ctime, which no program can set. The ctime is not compared for
folders, because adding and removing entries changes it. For folders, the mode, owner, group, inode and extended
attributes are compared, which include the default ACL for new files.
Source: overlayfs.rst, "changes go to the upper folder"; sysvipc(7); mq_overview(7).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from clary.agent.host.mounts.machine_view import LAYERS_FOLDER, UPPER_FOLDER
from clary.agent.host.mounts.mount_table import mounted_kinds
from clary.base import beneath_trees
from clary.base.beneath import Folder

MAX_ENTRIES = 50_000  # limit for all compared folders; reading so many takes a quarter of a second
_ROOT_FOLDER = "root"
_OWN = ("/dev", "/dev/shm", "/dev/mqueue", "/run")  # noqa: S108
_OWN_FILES = ("hosts", "hostname")  # below /etc
_EMPTIED = ("/tmp", "/var/tmp")  # noqa: S108
_OF_MOUNTS = (*_EMPTIED, "/dev/pts", "/dev/pts/ptmx")  # compared, although other mounts are skipped
_OF_OVERLAYS = ("trusted.overlay.", "user.overlay.")  # attributes that overlayfs writes for itself, sometimes later
_IPC_LISTS = ("msg", "sem", "shm")

Look = dict[str, tuple[int, ...]]
"""Path -> mode, owner, group and inode of each entry; of a file also its size and change time, of a folder a hash of
its extended attributes."""


class Traces:
    """Traces of programs on one host.

    Args:
        scratch_folder: of the host, as a path of this process.
    """

    def __init__(self, scratch_folder: str) -> None:
        self._scratch_folder = scratch_folder
        self._own_before: Look | None = None
        self._layers_before: Look = {}

    def begin(self) -> None:
        """Record the state of the host's own folders, once, before the first mount for a program.

        Raises: OSError: a folder cannot be read, or there are more than `MAX_ENTRIES` entries.
        """
        if self._own_before is None:
            self._own_before = self._look_at_own()

    def begin_program(self) -> None:
        """Record the state of the layers, which may contain mount points, before a program's first process starts.

        Raises: OSError, as `begin`.
        """
        self._layers_before = self._look_at_layers()

    def find(self) -> str:
        """Remove new entries; return a phrase about the first trace, or "".

        Raises: OSError, as `begin`.
        """
        assert self._own_before is not None
        for folder in _EMPTIED:
            if os.path.isdir(folder) and not os.path.islink(folder):
                empty(folder)
                if left := os.listdir(folder):
                    return f"{folder}/{left[0]} cannot be removed"
        for name in _IPC_LISTS:
            with open(f"/proc/sysvipc/{name}") as file:
                if len(file.readlines()) > 1:  # the first line has the names of the columns
                    return f"objects of System V ({name})"
        for path in sorted(self._look_at_own().keys() - self._own_before.keys()):
            above, name = os.path.split(path)
            with contextlib.suppress(FileNotFoundError), Folder.at(above) as parent:  # already removed with its folder
                beneath_trees.remove_tree(parent, name)
        return _difference(self._own_before, self._look_at_own()) or _difference(
            self._layers_before, self._look_at_layers()
        )

    def _look_at_layers(self) -> Look:
        look: Look = {}
        layers = f"{self._scratch_folder}/{LAYERS_FOLDER}"
        for name in os.listdir(layers):
            _look_at(f"{layers}/{name}/{UPPER_FOLDER}", look, skipped=frozenset())
        return look

    def _look_at_own(self) -> Look:
        look: Look = {}
        for name in _OWN_FILES:
            path = f"{self._scratch_folder}/{name}"
            _add(look, path, os.lstat(path))
        for path in filter(os.path.lexists, _OF_MOUNTS):
            _add(look, path, os.lstat(path))
        for folder, skipped in self._own_folders():
            _look_at(folder, look, skipped=skipped)
        return look

    def _own_folders(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield the folders of the host's own, each with the mounts below it, which are skipped."""
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            kinds = mounted_kinds(table.read())
        mounted = frozenset(kinds)
        # A root on disk is read through the scratch folder, beneath all mounts in it. A root in memory is read at "/".
        # A root that is an overlay is no folder of the host's own.
        yield f"{self._scratch_folder}/{_ROOT_FOLDER}", frozenset()
        if kinds.get("/") == "tmpfs":
            yield "/", mounted
        for folder in _OWN:
            if os.path.isdir(folder):
                yield folder, mounted - {folder}


def _difference(before: Look, now: Look) -> str:
    """Return the first path that is missing in one state or differs between them; empty if they are equal."""
    return min((path for path in now.keys() | before.keys() if now.get(path) != before.get(path)), default="")


def empty(folder: str) -> None:
    """Remove the content of a folder without following links. Raises: OSError: the folder cannot be listed."""
    with Folder.at(folder) as top:
        for name in os.listdir(top.fileno()):
            with contextlib.suppress(OSError):
                beneath_trees.remove_tree(top, name)


def _look_at(folder: str, look: Look, *, skipped: frozenset[str]) -> None:
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        _add(look, path, os.lstat(path))
        with os.scandir(path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    if entry.path not in skipped:
                        waiting.append(entry.path)
                else:
                    _add(look, entry.path, status)


def _add(look: Look, path: str, status: os.stat_result) -> None:
    if len(look) >= MAX_ENTRIES:
        raise OSError(f"there are more than {MAX_ENTRIES} entries to compare")
    found: tuple[int, ...] = (status.st_mode, status.st_uid, status.st_gid, status.st_ino)
    # Adding and removing entries changes a folder's size and time; using a device changes the device's time.
    if stat.S_ISREG(status.st_mode):
        found = (*found, status.st_size, status.st_ctime_ns)
    elif stat.S_ISDIR(status.st_mode):
        found = (*found, _attributes_of(path))
    look[path] = found


def _attributes_of(folder: str) -> int:
    """Return a hash of a folder's extended attributes, valid in this process only; 0 without attributes."""
    try:
        found = os.listxattr(folder, follow_symlinks=False)
        names = sorted(name for name in found if not name.startswith(_OF_OVERLAYS))
        return hash(tuple((name, os.getxattr(folder, name, follow_symlinks=False)) for name in names)) if names else 0
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return 0
        raise
