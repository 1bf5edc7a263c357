"""Merge of a host's changes into a folder of the machine, once the host has ended.

Where: `requirements` lets a host install into an overlay of an environment's copy and then merges the overlay's layer
into the copy. Files of an untrusted build are handled safely: links are moved and never followed, files lose owners,
mode bits and attributes that have effects outside of hosts, and entries that are neither file, folder nor link are
skipped. A new file replaces the old one and is never written into it, since other environments may share the old file.
Source: kernel Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories".
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from clary.base.beneath import Folder
from clary.base.beneath_trees import empty, remove_tree
from clary.base.errors import AgentError, Fault

MAX_DEPTH = 64  # nested folders; packages have ten
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_FOLDER_MODE = 0o755
_FILE_MODE = 0o644
_EXECUTE = 0o111
_OWNER_ONLY = 0o700


def merge_layer(layer: Path, target: Path, *, is_whole: bool, check: Callable[[], None]) -> tuple[str, ...]:
    """Move the content of `layer` into `target`; return the names of skipped entries.

    Both lie on the same file system, and no other process writes to them.

    Args:
        layer: of an overlay over `target`; or, with `is_whole`, the whole new content of `target`.
        check: called for each folder; raises if the time limit has passed.
    State after failure: `target` is half changed and must be deleted.
    Raises: AgentError with fault USER for a tree that is too deep; OSError.
    """
    merge = _Merge(check)
    with Folder.at(layer) as source, Folder.at(target) as place:
        if is_whole:
            empty(place)
        merge.folder(source, place, "", 0)
    return tuple(merge.left_out)


class _Merge:
    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.left_out: list[str] = []

    def folder(self, source: Folder, target: Folder, path: str, depth: int) -> None:
        self._check()
        if depth > MAX_DEPTH:
            raise AgentError(
                f"The installation nested folders more than {MAX_DEPTH} deep, at {path[:200]!a}.",
                fault=Fault.USER,
            )
        for name in os.listdir(source.fileno()):
            status = os.stat(name, dir_fd=source.fileno(), follow_symlinks=False)
            inner = f"{path}/{name}" if path else name
            if stat.S_ISDIR(status.st_mode):
                self._subfolder(source, target, name, inner, depth)
            elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:  # a whiteout: the host has removed the name
                remove_tree(target, name)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                if stat.S_ISREG(status.st_mode):
                    _make_plain(source, name, status)
                elif os.geteuid() == 0:
                    os.chown(name, 0, os.getegid(), dir_fd=source.fileno(), follow_symlinks=False)
                _make_way(target, name, for_folder=False)
                os.rename(name, name, src_dir_fd=source.fileno(), dst_dir_fd=target.fileno())
            else:
                self.left_out.append(inner)

    def _subfolder(self, source: Folder, target: Folder, name: str, path: str, depth: int) -> None:
        os.chmod(name, _OWNER_ONLY, dir_fd=source.fileno())  # the folder's mode may exclude its own owner
        with source.folder(name) as below:
            if any(_attribute(below, attribute) == b"y" for attribute in _OPAQUE):
                remove_tree(target, name)
            _make_way(target, name, for_folder=True)
            with target.folder(name, create=True, mode=_FOLDER_MODE) as place:
                self.folder(below, place, path, depth + 1)


def _make_plain(folder: Folder, name: str, status: os.stat_result) -> None:
    """Give a regular file the owner, mode and attributes of a file made by the agent."""
    os.chmod(name, _OWNER_ONLY, dir_fd=folder.fileno())
    descriptor = folder.open_file(name)
    try:
        if os.geteuid() == 0:
            os.fchown(descriptor, 0, os.getegid())
        for attribute in os.listxattr(descriptor):
            with contextlib.suppress(PermissionError):  # an attribute of a security module, which sets it on every file
                os.removexattr(descriptor, attribute)
        os.fchmod(descriptor, _FILE_MODE | (_EXECUTE if status.st_mode & _EXECUTE else 0))
    finally:
        os.close(descriptor)


def _make_way(target: Folder, name: str, *, for_folder: bool) -> None:
    """Remove an existing entry that a rename could not replace."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(target.status(name).st_mode) != for_folder:
            remove_tree(target, name)


def _attribute(folder: Folder, name: str) -> bytes:
    try:
        return os.getxattr(folder.fileno(), name)
    except OSError:
        return b""
