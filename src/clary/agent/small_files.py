"""Reads and writes of files in a program's tree, without following links that the program may have created.

The program owns the tree: a link could lead to files of the machine, and reading a pipe would block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from clary.base.beneath import Folder

MAX_NAMES = 4096  # limit of names read from one folder, because the program may create any number of files


def names_in(root: Path, parts: Sequence[str]) -> list[str]:
    """Return up to `MAX_NAMES` names in the folder `parts` below `root`; empty if a part is a link or no folder."""
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
    """Open the regular file `parts` below `root`; return a descriptor to close, or None without such a file."""
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
    """Write a file into an existing folder atomically, replacing an earlier file. Raises: OSError.

    Args:
        root: a folder that the program cannot replace.
        parts: names of the folders below `root`, which must not be links, and of the file.
        data: the complete content.
    """
    with Folder.at(root) as folder:
        folder.write("/".join(parts), data)
