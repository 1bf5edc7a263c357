"""The checkpoint folder as the agent opens it: part by part, no link followed.

The program owns what lies in it and may put a link anywhere at any moment; the agent has more rights than it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class CheckpointFolder:
    """The folder of one host.

    Args:
        home: a folder that the program cannot replace.
        below: the way from there to the checkpoint folder; the program may have put links on it.
        inside: the folder as the program sees it.
    """

    def __init__(self, home: Path, below: Sequence[str] = (), *, inside: str = "") -> None:
        self._home = home
        self._below = tuple(below)
        self.path = home.joinpath(*below)
        self.inside = inside or str(self.path)

    def make(self) -> None:
        """Make the folder; harmless when repeated, and only safe while no program runs."""
        self.path.mkdir(parents=True, exist_ok=True)

    def open(self) -> int:
        """Open the folder itself. Raises: OSError, also where a link has taken its place."""
        return _walk(os.open(self._home, _FOLDER_FLAGS), self._below)

    def open_file(self, path: str) -> int:
        """Open a file for reading. Raises: OSError."""
        *folders, name = path.split("/")
        folder = _walk(self.open(), folders)
        try:
            return os.open(name, _FILE_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)


def open_below(folder: int, name: str) -> int:
    """Open a folder in an open one. Raises: OSError for a link or anything else that is no folder."""
    return os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)


def _walk(folder: int, parts: Sequence[str]) -> int:
    """Go down from an open folder, which is closed, and return the last one, open."""
    for part in parts:
        try:
            below = open_below(folder, part)
        finally:
            os.close(folder)
        folder = below
    return folder
