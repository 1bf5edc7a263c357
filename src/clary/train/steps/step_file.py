"""The file of one process, which holds a row per step for its agent; one write per step, no thread, no lock.

Where: `torch_hooks` makes the file with the first row, so that processes that never train leave no file.

The file is written instead of mapped: on a full disk, a write fails with an error, while an access to a mapped page
ends in a signal.
"""

from __future__ import annotations

import contextlib
import os

from clary.contract.step_records import ENDING, StepRow, offset_of, pack_header, pack_row


class StepFile:
    """Writes the rows of this process.

    Args:
        folder: existing folder, made by the agent.
        rank: rank of this process.

    Raises: OSError.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self.process = os.getpid()
        path = os.path.join(folder, f"{rank}-{self.process}{ENDING}")
        # An existing file belongs to an earlier process with the same process id.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        os.pwrite(self._descriptor, pack_header(rank, self.process), 0)
        self._identity = _identity(self._descriptor)

    def write(self, row: StepRow) -> None:
        """Write a row over the oldest one. Raises: OSError."""
        # The program may have closed the descriptor, so its number may now belong to another file.
        if _identity(self._descriptor) != self._identity:
            raise OSError("the program has closed the file of step times")
        os.pwrite(self._descriptor, pack_row(row), offset_of(row.number))

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            if _identity(self._descriptor) == self._identity:
                os.close(self._descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    facts = os.fstat(descriptor)
    return facts.st_dev, facts.st_ino
