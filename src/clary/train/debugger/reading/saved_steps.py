"""The steps seen in files, their workers, and whether the steps are complete.

A step is complete once each worker has saved it or a later step: workers write in order, so a worker that has passed a
step will not save it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from clary.train.debugger.errors import NoMoreData, StepNotYetAvailable, StepUnavailable
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.ends import Ends
from clary.train.debugger.tensor_files import StepIndex


class StepState(Enum):
    """The state of a step; the numbers are smdebug's."""

    UNAVAILABLE = 0  # not saved, and will not be
    AVAILABLE = 1
    NOT_YET_AVAILABLE = 2


class SavedSteps:
    """Steps by their files' indexes. Iteration yields the global steps that at least one worker has saved.

    Args:
        ends: knows the workers that have announced that they save.
    """

    def __init__(self, ends: Ends) -> None:
        self.num_workers = 1  # announced number of workers that save
        self.has_ended = False  # whether no further step will be saved
        self.written_at: dict[int, float] = {}  # global step -> seconds since 1970
        self._ends = ends
        self._indexes: dict[int, dict[str, StepIndex]] = {}  # global step -> worker -> index
        self._mode_steps: dict[ModeKeys, dict[int, int]] = {}  # mode -> mode step -> global step
        self._last_of: dict[str, int] = {}  # worker -> its last step

    def __iter__(self) -> Iterator[int]:
        return iter(self._indexes)

    def __len__(self) -> int:
        return len(self._indexes)

    # Input from files.

    def take(self, index: StepIndex) -> None:
        """Add the index of a worker's file of a step."""
        self._indexes.setdefault(index.step, {})[index.worker] = index
        self._mode_steps.setdefault(index.mode, {})[index.mode_step] = index.step
        self.written_at[index.step] = max(index.written_at, self.written_at.get(index.step, 0.0))

    def take_passed(self, worker: str, step: int) -> None:
        """Record that a worker will not save any further step up to `step`."""
        self._last_of[worker] = max(step, self._last_of.get(worker, -1))

    def forget(self, worker: str) -> list[StepIndex]:
        """Remove a worker's files and return their indexes."""
        self._last_of.pop(worker, None)
        gone = []
        for step in [step for step, indexes in self._indexes.items() if worker in indexes]:
            index = self._indexes[step].pop(worker)
            gone.append(index)
            if not self._indexes[step]:
                del self._indexes[step]
                if self._mode_steps.get(index.mode, {}).get(index.mode_step) == step:
                    del self._mode_steps[index.mode][index.mode_step]
        return gone

    # Queries of steps.

    @property
    def workers(self) -> list[str]:
        """The workers that save, sorted by number."""
        return sorted(self._last_of, key=lambda worker: int(worker.removeprefix("worker_")))

    @property
    def modes(self) -> set[ModeKeys]:
        """The phases of the saved steps."""
        return {self.first_index(step).mode for step in self._indexes}

    def of_workers(self, step: int) -> Mapping[str, StepIndex]:
        """Return the indexes of a global step, by worker; empty for a step that was not saved."""
        return self._indexes.get(step, {})

    def first_index(self, step: int) -> StepIndex:
        """Return the index of one of the workers that have saved a global step."""
        return next(iter(self._indexes[step].values()))

    def of_mode(self, mode: ModeKeys) -> list[int]:
        """Return the global numbers of a phase's steps."""
        return list(self._indexes if mode is ModeKeys.GLOBAL else self._mode_steps.get(mode, {}).values())

    def global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """Return the global number of a phase's step; None if no file has it yet."""
        if mode is ModeKeys.GLOBAL:
            return mode_step if mode_step in self._indexes else None
        return self._mode_steps.get(mode, {}).get(mode_step)

    def among(self, steps: Iterable[int], mode: ModeKeys, *, with_incomplete: bool) -> list[int]:
        """Return the sorted step numbers, within a phase, of the given global steps that belong to the phase.

        Args:
            steps: global steps that at least one worker has saved.
            mode: phase that counts them; GLOBAL keeps all.
            with_incomplete: whether to keep steps that not all workers have passed.
        """
        passed = self._passed()
        found = [step for step in steps if with_incomplete or step <= passed]
        if mode is ModeKeys.GLOBAL:
            return sorted(found)
        indexes = [self.first_index(step) for step in found]
        return sorted(index.mode_step for index in indexes if index.mode is mode)

    # Further steps.

    def next_look(self) -> int:
        """Return the first global step that may have new files, since all workers have passed earlier steps."""
        workers = self._last_of.keys() | self._ends.workers
        return min((self._last_of.get(worker, 0) for worker in workers), default=0)

    def state(self, step: int, mode: ModeKeys) -> StepState:
        """Return the state of a phase's step."""
        found, passed = self.global_step(mode, step), self._passed()
        if found is not None:
            return StepState.AVAILABLE if found <= passed else StepState.NOT_YET_AVAILABLE
        if self.has_ended:
            return StepState.UNAVAILABLE
        seen = (one for one in self._mode_steps.get(mode, {}).items() if one[1] <= passed)
        last = passed if mode is ModeKeys.GLOBAL else max((mode_step for mode_step, _ in seen), default=-1)
        return StepState.UNAVAILABLE if step <= last else StepState.NOT_YET_AVAILABLE

    def check(self, step: int, mode: ModeKeys) -> None:
        """Check that a worker has saved a phase's step. Raises: StepNotYetAvailable, StepUnavailable, NoMoreData."""
        if self.global_step(mode, step) is not None:
            return
        if self.state(step, mode) is StepState.NOT_YET_AVAILABLE:
            raise StepNotYetAvailable(step, mode)
        last = max(self._indexes if mode is ModeKeys.GLOBAL else self._mode_steps.get(mode, {}), default=None)
        if self.has_ended and (last is None or step > last):
            raise NoMoreData(step, mode, last)
        raise StepUnavailable(step, mode)

    def _passed(self) -> int:
        """Return the last step that all workers have saved or passed, or -1.

        Once training has ended, return the last step of any worker.
        """
        if self.has_ended:
            return max(self._last_of.values(), default=-1)
        if len(self._last_of) < self.num_workers or self._ends.workers - self._last_of.keys():
            return -1
        return min(self._last_of.values())
