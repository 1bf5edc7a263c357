"""The output of one worker's steps: memory to copy into, the writer, and warnings when memory or disk is late."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from clary.train.debugger.capture.buffers import Pieces
from clary.train.debugger.capture.copying import StepCopy
from clary.train.debugger.capture.writing import Writer
from clary.train.debugger.collection import CollectionManager
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.tensor_files import StepIndex

_log = logging.getLogger("clary.debugger")


class Saver:
    """Saves steps of this process, one at a time; the caller must `close` it.

    Args:
        folder: created if missing.
        num_workers: number of workers that save.
        num_ends: number of workers that must end before the training counts as ended.
        limit_s: seconds that a step waits for memory, and `close` for the disk.
        goes_on_after: step of an earlier attempt after which this attempt continues; -1 without such an attempt.

    Raises: FolderTaken, OSError.
    """

    def __init__(
        self,
        folder: Path,
        worker: str,
        *,
        num_workers: int,
        collections: CollectionManager,
        limit_s: float,
        num_ends: int = 1,
        goes_on_after: int = -1,
    ) -> None:
        self.limit_s = limit_s
        self.num_dropped = 0
        self._folder, self._worker = folder, worker
        self._num_workers, self._num_ends = num_workers, num_ends
        self._goes_on_after = goes_on_after
        self._collections = collections
        self._writer = Writer(folder, worker)
        self._pieces = Pieces()
        self._copy: StepCopy | None = None
        self._dropped_step: int | None = None
        self._is_behind = False
        self.write_collections()

    @property
    def copy(self) -> StepCopy | None:
        """The copies of the current step, or None before its first tensor."""
        return self._copy

    def open_copy(self, step: int, mode: ModeKeys, mode_step: int) -> StepCopy | None:
        """Wait for memory and return the step's copies, to add tensors to; None if the step is dropped.

        Args:
            step: global step, counted over all phases from 0.
            mode: phase of the step.
            mode_step: step of that phase, from 0.
        """
        if self._copy is not None or step == self._dropped_step:
            return self._copy
        # After a dropped step, no step waits until writing has caught up, so that a hanging disk causes only one wait.
        piece = self._pieces.acquire(0.0 if self._is_behind else self.limit_s)
        self._is_behind = piece is None
        if piece is None:
            self._drop(step)
            return None
        index = StepIndex(
            step=step,
            mode=mode,
            mode_step=mode_step,
            worker=self._worker,
            num_workers=self._num_workers,
            # not before the program's start, even if the clock was set back
            written_at=max(time.time(), self._writer.began_at),
        )
        self._copy = StepCopy(index, piece, self._pieces)
        return self._copy

    def finish_step(self) -> None:
        """Submit the step to the writer, if it has tensors."""
        copy, self._copy = self._copy, None
        if copy is None:
            return
        copy.close()
        if copy.is_empty:
            copy.release()
        else:
            self._writer.submit(copy)

    def abandon_step(self) -> None:
        """Drop the step and accept no more tensors for it."""
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    def write_collections(self) -> None:
        """Write the file of collections. Raises: OSError."""
        self._writer.write_collections(
            self._collections.to_plain(), self._num_workers, self._num_ends, goes_on_after=self._goes_on_after
        )

    def close(self, *, failure: str) -> None:
        """Wait until all steps are written, and mark this worker as ended.

        Args:
            failure: the error that ended saving before the training ended; empty without an error.
        """
        try:
            is_written = self._writer.close(limit_s=self.limit_s, num_dropped=self.num_dropped, failure=failure)
        except OSError as error:
            _log.warning("debugger: the end of %s was not written: %s", self._worker, error)
            return
        if not is_written:
            _log.warning("debugger: %s was not written in %.0f s; the last steps are lost", self._folder, self.limit_s)

    def _drop(self, step: int) -> None:
        self.num_dropped += 1
        self._dropped_step = step
        if self.num_dropped == 1:
            _log.warning(
                "debugger: step %d was not saved: %s took longer than %.0f s for the steps before; the number of such "
                "steps will stand in `ended`. Save less, or less often.",
                step,
                self._folder,
                self.limit_s,
            )
