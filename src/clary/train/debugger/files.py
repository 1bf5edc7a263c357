"""The files of a trial: a local folder, or another source that lists and reads files.

collections/worker_0.json                          collections of one worker, number of workers, and time of its start
steps/000000000/000000000012.worker_0.tensors      one step of one worker, in folders of 1,000 steps
ended/worker_0.json                                this worker's program has ended; counts of unsaved steps
ended/algo-1.try-1.of-2                            the program of one of two hosts has ended; the host's agent writes it
END_OF_JOB.ts                                      the training has ended; the agent of a job's only host writes it
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from clary.train.debugger.errors import TensorFileError

COLLECTIONS, STEPS, ENDED, END_OF_JOB = "collections", "steps", "ended", "END_OF_JOB.ts"
STEPS_OF_A_FOLDER = 1000
GROUP = re.compile(r"\d{9}")
STEP_FILE = re.compile(r"(\d{12})\.(worker_\d{1,6})\.tensors")
WORKER_FILE = re.compile(r"(worker_\d{1,6})\.json")
HOST_FILE = re.compile(r"(.+)\.try-(\d{1,6})\.of-(\d{1,6})")  # `contract.job_rules.host_end` writes them


class Files(Protocol):
    """A growing tree of files. Names are relative paths with slashes."""

    interval_s: float  # minimum number of seconds between two listings of new files; 0 for no limit

    def listing(self, folder: str, after: str = "") -> dict[str, str]:
        """Return a folder's sorted names, each with a mark that changes with the file; empty if there is no folder.

        Args:
            after: names that sort before it are left out.

        Raises: OSError.
        """

    def size(self, name: str) -> int:
        """Return a file's length in bytes. Raises: OSError, such as FileNotFoundError."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return bytes of a file; fewer at its end.

        Args:
            name: path below the folder, with `/`.
            start: first byte, from 0.
            length: in bytes.
        Raises: OSError.
        """

    def prepare(self, names: Sequence[str]) -> None:
        """Prefetch the beginnings of files that are read next; errors are raised when the files are read."""


class LocalFiles:
    """A folder of this machine. Links, pipes and all other entries except plain files are refused."""

    interval_s = 0.0

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def listing(self, folder: str, after: str = "") -> dict[str, str]:
        """Return the names in a folder."""
        try:
            names = sorted(name for name in os.listdir(self._root / folder) if name >= after)
        except FileNotFoundError:
            return {}
        return {name: _mark(self._root / folder / name) for name in names}

    def size(self, name: str) -> int:
        """Return a file's length."""
        handle = self._open(name)
        try:
            return os.fstat(handle).st_size
        finally:
            os.close(handle)

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return bytes of a file.

        Args: as `Files.read`.
        """
        handle = self._open(name)
        try:
            pieces = []
            while length > 0 and (piece := os.pread(handle, length, start)):
                pieces.append(piece)
                start, length = start + len(piece), length - len(piece)
            return b"".join(pieces)
        finally:
            os.close(handle)

    def prepare(self, names: Sequence[str]) -> None:
        """Do nothing, since local files need no prefetching."""

    def has(self, name: str) -> bool:
        """Whether a file of this name exists."""
        return os.path.lexists(self._root / name)

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


def _mark(path: Path) -> str:
    try:
        facts = os.stat(path, follow_symlinks=False)
    except OSError:
        return ""  # deleted meanwhile; reading it raises an error
    return f"{facts.st_ino} {facts.st_size} {facts.st_mtime_ns}"
