"""Scan of the checkpoint folder: its content at one moment.

Skipped with a reason: sockets, named pipes, devices, links that leave the folder, names that are not UTF-8 text or too
long, folders that are nested too deep, and the folder name reserved for sets. The folder in which another host's
restore collects files is skipped without a reason. A file that vanishes during the scan counts as missing. A folder
with more than `MAX_ENTRIES` entries is not scanned to its end, because the agent keeps facts of each in memory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from clary.agent.checkpoints.folder import CheckpointFolder, open_below
from clary.agent.checkpoints.places import inner_target, path_problem
from clary.contract.checkpoint_sets import OWN_FOLDER

MAX_ENTRIES = 1_000_000  # names in the folder and all folders below it; about 0.5 GB of the agent's memory
_MAX_DEPTH = 100  # nested folders, each with an open descriptor
_MODE_BITS = 0o777
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
STAGING = f"{OWN_FOLDER}.restoring"  # a restore collects its files here before it renames them
_NOT_REGULAR = "left out, no regular file (a socket, named pipe or device)"
_LEAVES = "left out, symbolic links that leave the folder"
_NO_NAME = "left out, names that cannot be kept"
_OWN = "left out, the name is taken for the sets themselves"
_TOO_DEEP = f"left out, more than {_MAX_DEPTH} folders deep"


class TooManyEntriesError(OSError):
    """A checkpoint folder with more entries than a scan takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """The facts that distinguish one state of a file from another."""

    size_bytes: int
    modified_ns: int
    changed_ns: int  # st_ctime_ns: no program can set it back
    inode: int
    mode: int  # permission bits

    def is_written_as(self, other: FileFacts) -> bool:
        """Whether no write happened between two states; permissions and names may have changed."""
        return (self.inode, self.size_bytes, self.modified_ns) == (other.inode, other.size_bytes, other.modified_ns)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The folder at one moment; paths are relative to it, with `/`."""

    files: Mapping[str, FileFacts] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()  # empty folders
    links: Mapping[str, str] = field(default_factory=dict)  # path -> relative target
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # reason -> paths


def scan(folder: CheckpointFolder) -> Snapshot:
    """Return the content of the folder; a missing folder counts as empty.

    Raises: OSError if the folder cannot be read, or if a link has replaced it; TooManyEntriesError.
    """
    walk = _Walk(folder.inside)
    try:
        descriptor = folder.open()
    except FileNotFoundError:
        return Snapshot()
    walk.look_into(descriptor, "")
    left_out = {why: tuple(paths) for why, paths in walk.left_out.items()}
    return Snapshot(files=walk.files, folders=frozenset(walk.folders), links=walk.links, left_out=left_out)


def facts_of(status: os.stat_result) -> FileFacts:
    """Return the facts of a regular file."""
    return FileFacts(
        size_bytes=status.st_size,
        modified_ns=status.st_mtime_ns,
        changed_ns=status.st_ctime_ns,
        inode=status.st_ino,
        mode=stat.S_IMODE(status.st_mode) & _MODE_BITS,
    )


class _Walk:
    def __init__(self, root: str) -> None:
        self._root = root  # the folder's path in the program's view
        self.files: dict[str, FileFacts] = {}
        self.folders: set[str] = set()
        self.links: dict[str, str] = {}
        self.left_out: dict[str, list[str]] = {}
        self._num_seen = 0

    def look_into(self, descriptor: int, above: str, depth: int = 0) -> bool:
        """Read an open folder and close it; return whether it has an entry that is not skipped."""
        holds_any = False
        try:
            for name in self._names(descriptor):
                path = f"{above}/{name}" if above else name
                if path.startswith(f"{STAGING}-"):
                    continue  # another host that shares the folder is restoring
                if path == OWN_FOLDER:
                    self._leave_out(_OWN, path)
                elif path_problem(path) is not None:
                    self._leave_out(_NO_NAME, path)
                else:
                    holds_any = self._look_at(descriptor, name, path, depth) or holds_any
        finally:
            os.close(descriptor)
        return holds_any

    def _names(self, descriptor: int) -> list[str]:
        """Return the sorted names in an open folder. Raises: TooManyEntriesError."""
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in islice(entries, MAX_ENTRIES - self._num_seen + 1)]
        self._num_seen += len(names)
        if self._num_seen > MAX_ENTRIES:
            raise TooManyEntriesError(
                f"the folder {self._root} holds more than {MAX_ENTRIES} files and folders, which is the limit, so no "
                "new set is stored; remove old checkpoints, or write fewer and larger files"
            )
        return sorted(names)

    def _look_at(self, folder: int, name: str, path: str, depth: int) -> bool:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if depth >= _MAX_DEPTH:
                    self._leave_out(_TOO_DEEP, path)
                    return False
                if not self.look_into(open_below(folder, name), path, depth + 1):
                    self.folders.add(path)
                return True
            if stat.S_ISLNK(status.st_mode):
                target = inner_target(path, os.readlink(name, dir_fd=folder), root=self._root)
                if target is None:
                    self._leave_out(_LEAVES, path)
                    return False
                self.links[path] = target
                return True
        except OSError as error:
            if error.errno not in _REPLACED:
                raise
            return False  # replaced or removed meanwhile: the next scan sees the new state
        if not stat.S_ISREG(status.st_mode):
            self._leave_out(_NOT_REGULAR, path)
            return False
        self.files[path] = facts_of(status)
        return True

    def _leave_out(self, why: str, path: str) -> None:
        self.left_out.setdefault(why, []).append(path)
