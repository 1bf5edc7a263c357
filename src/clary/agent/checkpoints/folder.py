"""Safe opening of the checkpoint folder: part by part, without following links.

The program owns the folder's content and may create a link anywhere at any moment; the agent has more rights than the
program.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from clary.base.beneath import Folder, open_beneath

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CheckpointFolder:
    """The folder of one host.

    Args:
        home: a folder that the program cannot replace.
        below: path from `home` to the checkpoint folder; the program may have replaced parts of it by links.
        inside: path of the folder in the program's view.
    """

    def __init__(self, home: Path, below: Sequence[str] = (), *, inside: str = "") -> None:
        self._home = home
        self._way = "/".join(below)
        self.path = home.joinpath(*below)
        self.inside = inside or str(self.path)

    def make(self) -> None:
        """Create the folder if it is missing. Raises: OSError, also if a link has replaced it."""
        with Folder.at(self._home, create=True) as home:
            home.folder(self._way, create=True).close()

    def open(self) -> int:
        """Open the checkpoint folder. Raises: OSError, also if a link has replaced it."""
        with Folder.at(self._home) as home, home.folder(self._way) as folder:
            return folder.detach()

    def open_file(self, path: str) -> int:
        """Open a regular file for reading. Raises: OSError, also for any other kind of entry."""
        with Folder.at(self._home) as home, home.folder(self._way) as folder:
            return folder.open_file(path)


def open_below(folder: int, name: str) -> int:
    """Open a subfolder of an open folder. Raises: OSError for a link or any other entry that is not a folder."""
    return open_beneath(folder, name, _FOLDER_FLAGS)
