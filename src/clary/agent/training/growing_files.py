"""Files that a program writes, found below a few folders and read from a given offset.

The program owns the folders: links are never followed, pipes are never opened, and the number of names read is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clary.base.beneath import Folder
from clary.base.beneath_trees import entries

MAX_DEPTH = 12  # levels of nested folders
MAX_ENTRIES = 20_000  # names read in one walk


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A regular file."""

    path: str  # below the root, with `/`
    inode: int
    size_bytes: int
    modified_ns: int


def walk(root: Path, folder: str, *, max_entries: int = MAX_ENTRIES) -> Iterator[FoundFile]:
    """Yield the regular files below a folder of `root`, in no order; no file if a part of the path is not a folder.

    Args:
        root: a host's `/opt/ml` as the agent sees it.
        folder: path below `root`, with `/`.
        max_entries: names read; files beyond them are not found.
    """
    try:
        with Folder.at(root) as top:
            for entry in entries(top, folder, max_entries=max_entries, max_depth=MAX_DEPTH):
                status = entry.status
                if entry.is_file and _is_text(entry.path):
                    yield FoundFile(
                        path=entry.path,
                        inode=status.st_ino,
                        size_bytes=status.st_size,
                        modified_ns=status.st_mtime_ns,
                    )
    except OSError:
        return


def read_piece(root: Path, path: str, *, offset: int, max_bytes: int) -> tuple[int, bytes] | None:
    """Return the inode of a file and its bytes from `offset` on, or None if there is no such regular file.

    Args:
        root: a host's `/opt/ml` as the agent sees it.
        path: path of the file below `root`, with `/`.
        offset: offset in bytes; beyond the file's end no bytes are returned.
        max_bytes: read at most.
    """
    try:
        with Folder.at(root) as top:
            descriptor = top.open_file(path)
        try:
            return os.fstat(descriptor).st_ino, os.pread(descriptor, max_bytes, offset)
        finally:
            os.close(descriptor)
    except OSError:
        return None


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
