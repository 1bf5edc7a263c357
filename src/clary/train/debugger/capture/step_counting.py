"""The count at which a hook's steps begin, and the file in which the agent reads the counts.

Where: `step_capture`. In a job with checkpoints the agent names a folder (`contract.step_counts`). The folder holds the
counts of steps at the checkpoints from which this attempt was restored, and a hook writes a row for each step there.
Without that folder a hook begins with step 0 and writes no rows.

An error here is logged once; the hook then counts from 0, or continues without writing rows.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time

from clary.base.errors import ContractError
from clary.base.plain import from_plain
from clary.contract.step_counts import (
    ENDING,
    FOLDER_VARIABLE,
    RESTORED_FILE,
    CountsHeader,
    RestoredCounts,
    StepCounts,
    offset_of,
    pack_header,
    pack_row,
)

_MAX_BYTES = 64 * 1024  # maximum size in bytes of the file that the agent leaves after a restore
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_log = logging.getLogger("clary.debugger")


def restored_counts(*, trains_alone: bool) -> StepCounts:
    """Return the counts of steps at the checkpoints from which this attempt was restored; never raises.

    Args:
        trains_alone: whether each host has a training of its own.
    """
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if not folder:
        return StepCounts()
    try:
        found = _read(os.path.join(folder, RESTORED_FILE))
    except FileNotFoundError:
        return StepCounts()
    except (OSError, ValueError, RecursionError, ContractError) as error:
        _log.warning("debugger: steps are counted from 0: the restored checkpoints' counts are unreadable: %s", error)
        return StepCounts()
    counts = (found.own if trains_alone else found.first) or StepCounts()
    if not counts.is_possible:
        _log.warning("debugger: steps are counted from 0: the restored checkpoints have impossible counts: %s", counts)
        return StepCounts()
    return counts


class CountsFile:
    """Writes a row for each step of this process.

    Args:
        before: the counts at the start of the process.
    """

    def __init__(self, before: StepCounts) -> None:
        self._folder = os.environ.get(FOLDER_VARIABLE, "")
        self._before = before
        self._number = 0
        self._descriptor = -1
        self._identity = (0, 0)

    def add(self, worker: str, total: int, train: int, evaluate: int, predict: int) -> None:
        """Record that a step begins; never raises. It costs one write and uses no threads or locks.

        Args:
            worker: `worker_N`; only the first step uses it.
            total, train, evaluate, predict: last step of all phases together and of each phase.
        """
        if not self._folder:
            return
        now_ns = time.time_ns()
        try:
            if self._descriptor < 0:
                self._open(worker, now_ns)
            # A program may have closed this descriptor, and its number may now belong to a file of the program.
            if _identity(self._descriptor) != self._identity:
                self._descriptor = -1
                raise OSError("the program has closed the file of step counts")
            self._number += 1
            row = pack_row(self._number, now_ns, (total, train, evaluate, predict))
            os.pwrite(self._descriptor, row, offset_of(self._number))
        except (OSError, ValueError, OverflowError) as error:
            _log.warning("debugger: checkpoints are stored without the number of their step: %s", error)
            self._folder = ""
            self.close()

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        descriptor, self._descriptor, self._folder = self._descriptor, -1, ""
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                if _identity(descriptor) == self._identity:
                    os.close(descriptor)

    def _open(self, worker: str, now_ns: int) -> None:
        path = os.path.join(self._folder, f"{worker}-{os.getpid()}{ENDING}")
        self._descriptor = os.open(path, _WRITE_FLAGS, 0o644)
        self._identity = _identity(self._descriptor)
        header = CountsHeader(int(worker.removeprefix("worker_")), now_ns, self._before)
        os.pwrite(self._descriptor, pack_header(header), 0)


def _read(path: str) -> RestoredCounts:
    descriptor = os.open(path, _READ_FLAGS)
    try:
        return from_plain(RestoredCounts, json.loads(os.read(descriptor, _MAX_BYTES)))
    finally:
        os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    facts = os.fstat(descriptor)
    return facts.st_dev, facts.st_ino
