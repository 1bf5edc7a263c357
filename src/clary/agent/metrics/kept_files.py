"""Small kernel files that are read repeatedly and kept open within a budget.

Where: the sources of the agent, the machine and the program use it. A read of an open file costs a third of the open,
and an open file of /proc/PID stays tied to its process: after the process's end reads fail, even if another process has
the pid.
"""

from __future__ import annotations

import contextlib
import os

_READ_BYTES = 16 * 1024
_MAX_BYTES = 4 * 1024 * 1024  # per read of a file that is read in pieces


class OpenFiles:
    """Counts files that may be kept open; further files are opened for each read."""

    def __init__(self, most: int) -> None:
        self.num_left = most


class KeptFile:
    """A kernel file.

    Args:
        path: of the file.
        budget: shared by many files; None: the file is never kept open.
    """

    def __init__(self, path: str, budget: OpenFiles | None = None) -> None:
        self._path = path
        self._budget = budget
        self._descriptor = -1

    def read(self) -> bytes | None:
        """Return the content of a file that the kernel returns in one read; None if it cannot be read."""
        try:
            if self._descriptor >= 0:
                return os.pread(self._descriptor, _READ_BYTES, 0)
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if self._budget is not None and self._budget.num_left > 0:
            self._budget.num_left -= 1
            self._descriptor = descriptor
            return self.read()
        try:
            return os.read(descriptor, _READ_BYTES)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            if self._budget is not None:
                self._budget.num_left += 1


def read_list(path: str) -> bytes | None:
    """Return the content of a file that needs several reads, up to a limit; None if it cannot be read."""
    pieces = []
    size = 0
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while size < _MAX_BYTES and (piece := os.read(descriptor, _READ_BYTES)):
                pieces.append(piece)
                size += len(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)
    return None
