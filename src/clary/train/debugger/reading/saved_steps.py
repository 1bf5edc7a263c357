"""The steps that have been seen, their workers, and whether they are whole.

A step is whole once each worker has saved it, or has saved a later one: workers write in order, so a worker that has
passed a step will not save it any more.
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
    """Steps by their files' indexes. Iterates over the steps that some worker has saved, by global number.

    Args:
        ends: has the workers that have announced that they save.
    """

    def __init__(self, ends: Ends) -> None:
        self.num_workers = 1  # number that save, as far as announced
        self.has_ended = False  # whether no further step will be saved
        self.written_at: dict[int, float] = {}  # seconds since 1970, by global step
        self._ends = ends
        self._indexes: dict[int, dict[str, StepIndex]] = {}  # by global step and worker
        self._mode_steps: dict[ModeKeys, dict[int, int]] = {}  # global step by mode and mode step
        self._last_of: dict[str, int] = {}  # each worker's last step

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
        """Record that a worker will save no more steps up to this one."""
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

    # Seen steps.

    @property
    def workers(self) -> list[str]:
        """The workers that save, by number."""
        return sorted(self._last_of, key=lambda worker: int(worker.removeprefix("worker_")))

    @property
    def modes(self) -> set[ModeKeys]:
        """The phases that steps were saved in."""
        return {self.first_index(step).mode for step in self._indexes}

    def of_workers(self, step: int) -> Mapping[str, StepIndex]:
        """Return the indexes of a global step, by worker; empty for a step that was not saved."""
        return self._indexes.get(step, {})

    def first_index(self, step: int) -> StepIndex:
        """Return one worker's index of a global step that some worker has saved."""
        return next(iter(self._indexes[step].values()))

    def of_mode(self, mode: ModeKeys) -> list[int]:
        """Return the global numbers of a phase's steps."""
        return list(self._indexes if mode is ModeKeys.GLOBAL else self._mode_steps.get(mode, {}).values())

    def global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """Return the number among all steps of a phase's step, None if it has not been seen."""
        if mode is ModeKeys.GLOBAL:
            return mode_step if mode_step in self._indexes else None
        return self._mode_steps.get(mode, {}).get(mode_step)

    def among(self, steps: Iterable[int], mode: ModeKeys, *, with_incomplete: bool) -> list[int]:
        """Return the steps of a phase among global steps, as that phase counts them, sorted.

        Args:
            steps: global ones that some worker has saved.
            mode: phase that counts them; GLOBAL keeps all.
            with_incomplete: keep steps that not all workers have passed.
        """
        passed = self._passed()
        found = [step for step in steps if with_incomplete or step <= passed]
        if mode is ModeKeys.GLOBAL:
            return sorted(found)
        indexes = [self.first_index(step) for step in found]
        return sorted(index.mode_step for index in indexes if index.mode is mode)

    # Further steps.

    def next_look(self) -> int:
        """Return the first global step whose files may be new: all workers that save have passed the earlier steps."""
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
        """Return if some worker has saved a phase's step. Raises: StepNotYetAvailable, StepUnavailable, NoMoreData."""
        if self.global_step(mode, step) is not None:
            return
        if self.state(step, mode) is StepState.NOT_YET_AVAILABLE:
            raise StepNotYetAvailable(step, mode)
        last = max(self._indexes if mode is ModeKeys.GLOBAL else self._mode_steps.get(mode, {}), default=None)
        if self.has_ended and (last is None or step > last):
            raise NoMoreData(step, mode, last)
        raise StepUnavailable(step, mode)

    def _passed(self) -> int:
        """Return the last step that all workers have passed or saved, or -1.

        Once training has ended, the last step of any worker.
        """
        if self.has_ended:
            return max(self._last_of.values(), default=-1)
        if len(self._last_of) < self.num_workers or self._ends.workers - self._last_of.keys():
            return -1
        return min(self._last_of.values())
