"""Output of the steps of this process. The folder stays untouched until there is a tensor to write."""

from __future__ import annotations

from pathlib import Path

from clary.train.debugger.capture.copying import StepCopy
from clary.train.debugger.capture.folder_claims import has_ended_well
from clary.train.debugger.capture.hook_options import HookOptions
from clary.train.debugger.capture.ranks import WorkerPlace, worker_place
from clary.train.debugger.capture.saving import Saver
from clary.train.debugger.modes import ModeKeys


class WorkerOutput:
    """Saves the steps of this process's worker, if that worker has to save; the caller must `close` it.

    Args:
        limit_s: seconds that a step waits for memory, and `close` for the disk.
    """

    def __init__(self, options: HookOptions, *, limit_s: float) -> None:
        self._options, self._limit_s = options, limit_s
        self.goes_on_after = -1  # last step of an earlier attempt; set before the first step is saved
        self._place: WorkerPlace | None = None
        self._saver: Saver | None = None

    @property
    def num_dropped(self) -> int:
        """Number of steps that got no memory in time."""
        return 0 if self._saver is None else self._saver.num_dropped

    @property
    def saves(self) -> bool:
        """Whether this worker has to save; before `find_worker` it does not count as the chief."""
        saves_here = self._options.include_workers == "all" or (self._place is not None and self._place.is_chief)
        return saves_here and not self._options.dry_run

    @property
    def place(self) -> WorkerPlace:
        """This worker's place, as far as it is known."""
        return self._place or worker_place()

    def find_worker(self) -> None:
        """Determine this worker's place anew unless it has saved; a process group may have been made meanwhile."""
        if self._saver is None:
            self._place = worker_place()

    def was_saved_before(self) -> bool:
        """Whether another program saved here as this worker and ended well, before this program's first save."""
        if self._saver is not None:
            return False
        return has_ended_well(Path(self._options.out_dir), self.place.name)

    def open_copy(self, step: int, mode: ModeKeys, mode_step: int) -> StepCopy | None:
        """Return the step's copies to add tensors to, or None if the step is dropped.

        Args: as `Saver.open_copy`.
        Raises: FolderTaken, OSError.
        """
        if self._saver is None:
            place, saves_all = self.place, self._options.include_workers == "all"
            self._saver = Saver(
                Path(self._options.out_dir),
                place.name,
                num_workers=place.num_workers if saves_all else 1,
                num_ends=place.num_workers if saves_all else place.num_trainings,
                collections=self._options.collection_manager,
                limit_s=self._limit_s,
                goes_on_after=self.goes_on_after,
            )
        return self._saver.open_copy(step, mode, mode_step)

    def free_name(self, name: str) -> str:
        """Return a name that is new in the step: the given name, or the given name with a number."""
        copy = None if self._saver is None else self._saver.copy
        found, number = name, 1
        while copy is not None and found in copy:
            found, number = f"{name}_{number}", number + 1
        return found

    def has(self, name: str) -> bool:
        """Whether the step has a tensor of a name."""
        copy = None if self._saver is None else self._saver.copy
        return copy is not None and name in copy

    def write_collections(self) -> None:
        """Write the file of collections if a tensor was saved; else the first tensor does so. Raises: OSError."""
        if self._saver is not None:
            self._saver.write_collections()

    def finish_step(self) -> None:
        """Submit the step to the writer, if it has tensors."""
        if self._saver is not None:
            self._saver.finish_step()

    def abandon_step(self) -> None:
        """Drop the step and accept no more tensors for it."""
        if self._saver is not None:
            self._saver.abandon_step()

    def close(self, *, failure: str) -> None:
        """Wait until all steps are written, and mark this worker as ended.

        Args:
            failure: the error that ended saving before the training ended; empty without an error.
        """
        if self._saver is not None:
            self._saver.close(failure=failure)
