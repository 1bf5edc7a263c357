"""Files in a program's tree, read and written without following anything that it may have put in their place.

The program owns the tree: a link could lead to files of the machine, and a pipe would hold its reader.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

MAX_NAMES = 4096  # looked at in one folder, whatever a program has put there

_READABLE = 0o644
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def names_in(root: Path, parts: Sequence[str]) -> list[str]:
    """Return names in the folder `parts` below `root`, at most `MAX_NAMES`; none if a step is a link or no folder."""
    try:
        with _opened_folder(root, parts) as folder, os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, MAX_NAMES)]
    except OSError:
        return []


def read_start(root: Path, parts: Sequence[str], *, max_bytes: int) -> bytes | None:
    """Return the first `max_bytes` of the regular file `parts` below `root`; None if there is none that may be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with _opened_folder(root, parts[:-1]) as folder:
            descriptor = os.open(parts[-1], flags, dir_fd=folder)
            try:
                return os.read(descriptor, max_bytes) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
            finally:
                os.close(descriptor)
    except OSError:
        return None


def open_regular(root: Path, parts: Sequence[str]) -> int | None:
    """Return a descriptor of the regular file `parts` below `root`, to be closed; None if there is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with _opened_folder(root, parts[:-1]) as folder:
            descriptor = os.open(parts[-1], flags, dir_fd=folder)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def remove(root: Path, parts: Sequence[str]) -> None:
    """Remove the file `parts` below `root`, if there is one that may be removed."""
    with contextlib.suppress(OSError), _opened_folder(root, parts[:-1]) as folder:
        os.unlink(parts[-1], dir_fd=folder)


def write_whole(root: Path, parts: Sequence[str], data: bytes) -> None:
    """Put a file into a folder that is there, whole or not at all, in the place of an earlier one. Raises: OSError."""
    part = f".{parts[-1]}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _opened_folder(root, parts[:-1]) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
        with open(os.open(part, flags, _READABLE, dir_fd=folder), "wb") as file:
            os.fchmod(file.fileno(), _READABLE)  # whatever the agent's umask is
            file.write(data)
        os.rename(part, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _opened_folder(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Open a folder one step after the other; OSError where a step below `root` is a link."""
    descriptor = os.open(root, _FOLDER_FLAGS)
    try:
        for part in parts:
            below = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)
