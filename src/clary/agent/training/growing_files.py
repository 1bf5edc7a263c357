"""Files that a program writes, found below a few folders and read on where the last look ended.

The program owns the folders: links are never followed, pipes never opened, and there are bounds on how much is looked
at, whatever a program has put there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MAX_DEPTH = 12  # folders in one another
MAX_ENTRIES = 20_000  # names looked at in one walk

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A regular file."""

    path: str  # below the root, with `/`
    inode: int
    size_bytes: int
    modified_ns: int


def walk(root: Path, folder: str, *, max_entries: int = MAX_ENTRIES) -> Iterator[FoundFile]:
    """Yield the regular files below a folder of `root`, in no order; none where a step is a link or no folder."""
    left = [max_entries]
    try:
        with opened_folder(root, folder) as descriptor:
            yield from _look_into(descriptor, folder, left, depth=0)
    except OSError:
        return


def read_piece(root: Path, path: str, *, offset: int, max_bytes: int) -> tuple[int, bytes] | None:
    """Return the inode of a file and what stands from `offset` on; None if there is no such regular file."""
    try:
        with opened_file(root, path) as descriptor:
            return os.fstat(descriptor).st_ino, os.pread(descriptor, max_bytes, offset)
    except OSError:
        return None


@contextmanager
def opened_file(root: Path, path: str) -> Iterator[int]:
    """Open a regular file below `root`; OSError where it is none, or where a step on the way is a link."""
    folder, _, name = path.rpartition("/")
    with opened_folder(root, folder) as above:
        descriptor = os.open(name, _FILE_FLAGS, dir_fd=above)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{path} is no regular file")
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def opened_folder(root: Path, folder: str) -> Iterator[int]:
    """Open a folder one step after the other; OSError where a step below `root` is a link."""
    descriptor = os.open(root, _FOLDER_FLAGS)
    try:
        for part in filter(None, folder.split("/")):
            below = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _look_into(descriptor: int, above: str, left: list[int], *, depth: int) -> Iterator[FoundFile]:
    with os.scandir(descriptor) as entries:
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                return
            try:
                status = os.stat(entry.name, dir_fd=descriptor, follow_symlinks=False)
                entry.name.encode()
            except (OSError, UnicodeEncodeError):
                continue
            path = f"{above}/{entry.name}" if above else entry.name
            if stat.S_ISREG(status.st_mode):
                yield FoundFile(
                    path=path, inode=status.st_ino, size_bytes=status.st_size, modified_ns=status.st_mtime_ns
                )
            elif stat.S_ISDIR(status.st_mode) and depth < MAX_DEPTH:
                try:
                    below = os.open(entry.name, _FOLDER_FLAGS, dir_fd=descriptor)
                except OSError:
                    continue
                try:
                    yield from _look_into(below, path, left, depth=depth + 1)
                finally:
                    os.close(below)
