"""Where a trial reads from: a folder here, anything that can list and read there.

collections/worker_0.json                          what one worker saves, and how many workers save
steps/000000000/000000000012.worker_0.tensors      one step of one worker, in folders of 1,000 steps
ended/worker_0.json                                this worker's training is over, and what it could not save
END_OF_JOB.ts                                      all of it is; written by whoever runs the job
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path
from typing import Protocol

from clary.train.debugger.errors import TensorFileError

COLLECTIONS, STEPS, ENDED, END_OF_JOB = "collections", "steps", "ended", "END_OF_JOB.ts"
STEPS_OF_A_FOLDER = 1000
GROUP = re.compile(r"\d{9}")
STEP_FILE = re.compile(r"(\d{12})\.(worker_\d{1,6})\.tensors")
WORKER_FILE = re.compile(r"(worker_\d{1,6})\.json")


class Files(Protocol):
    """A tree of files that grows. Names are relative, with slashes."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if it is not there. Raises: OSError."""

    def size(self, name: str) -> int:
        """Return a file's length in bytes. Raises: OSError, FileNotFoundError for one."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return bytes of a file, fewer where it ends. Raises: OSError."""


class LocalFiles:
    """A folder of this machine. What is no plain file is refused: a link or a pipe has no place there."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self._root / folder))
        return []

    def size(self, name: str) -> int:
        """Return a file's length."""
        handle = self._open(name)
        try:
            return os.fstat(handle).st_size
        finally:
            os.close(handle)

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return bytes of a file."""
        handle = self._open(name)
        try:
            pieces = []
            while length > 0 and (piece := os.pread(handle, length, start)):
                pieces.append(piece)
                start, length = start + len(piece), length - len(piece)
            return b"".join(pieces)
        finally:
            os.close(handle)

    def _open(self, name: str) -> int:
        try:
            handle = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise TensorFileError(f"{self._root / name} is a link, and no plain file") from error
            raise
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise TensorFileError(f"{self._root / name} is no plain file")
        return handle


def step_file(step: int, worker: str) -> str:
    """Return the name of one worker's file of a step, below `steps`."""
    return f"{step // STEPS_OF_A_FOLDER:09d}/{step:012d}.{worker}.tensors"
