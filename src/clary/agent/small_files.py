"""Files in a program's tree, read and written without following links that the program may have put there.

The program owns the tree: a link could lead to files of the machine, and reading a pipe would block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from clary.base.beneath import Folder

MAX_NAMES = 4096  # read from one folder, however many files the program has put there


def names_in(root: Path, parts: Sequence[str]) -> list[str]:
    """Return at most `MAX_NAMES` names in the folder `parts` below `root`; empty if a step is a link or no folder."""
    try:
        with Folder.at(root) as folder:
            return folder.names("/".join(parts), limit=MAX_NAMES)
    except OSError:
        return []


def read_start(root: Path, parts: Sequence[str], *, max_bytes: int) -> bytes | None:
    """Return the first `max_bytes` of the regular file `parts` below `root`, or None if it cannot be read."""
    try:
        with Folder.at(root) as folder:
            return folder.read("/".join(parts), max_bytes=max_bytes)
    except OSError:
        return None


def open_regular(root: Path, parts: Sequence[str]) -> int | None:
    """Open the regular file `parts` below `root`; return a descriptor to be closed, or None without such a file."""
    try:
        with Folder.at(root) as folder:
            return folder.open_file("/".join(parts))
    except OSError:
        return None


def remove(root: Path, parts: Sequence[str]) -> None:
    """Remove the file `parts` below `root`, if it exists and may be removed."""
    with contextlib.suppress(OSError), Folder.at(root) as folder:
        folder.remove("/".join(parts))


def write_whole(root: Path, parts: Sequence[str], data: bytes) -> None:
    """Put a file into an existing folder, whole or not at all, replacing an earlier one. Raises: OSError.

    Args:
        root: a folder that the program cannot replace.
        parts: names of the folders below `root`, none of which may be a link, and of the file.
        data: the whole content.
    """
    with Folder.at(root) as folder:
        folder.write("/".join(parts), data)
