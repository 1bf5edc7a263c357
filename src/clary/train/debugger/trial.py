"""What a training has saved so far, while it goes on or after. The names are smdebug's.

A step is there once each worker has saved it, or has saved a later one: workers write in order, so a worker that has
passed a step will not save it any more. Training has ended once each worker has said so, or whoever runs the job has.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from clary.train.debugger.collection import Collection, CollectionManager
from clary.train.debugger.errors import (
    ConfigurationError,
    NoMoreData,
    StepNotYetAvailable,
    StepUnavailable,
    TensorFileError,
    TensorUnavailable,
    UnsupportedError,
)
from clary.train.debugger.files import (
    COLLECTIONS,
    END_OF_JOB,
    ENDED,
    GROUP,
    STEP_FILE,
    STEPS,
    STEPS_OF_A_FOLDER,
    WORKER_FILE,
    Files,
    LocalFiles,
)
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.saved_tensor import Tensor
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, read_index, read_values

WAIT_LIMIT_S = 28 * 24 * 3600.0  # of `wait_for_steps`; no job is longer
_PAUSE_S = 0.5  # between two looks
_KEPT_BYTES = 4096  # values up to this size are kept: losses are asked for again and again
_MAX_JSON = 16 * 1024**2  # bytes
_log = logging.getLogger("clary.debugger")


class StepState(Enum):
    """What is known of a step; the numbers are smdebug's."""

    UNAVAILABLE = 0  # not saved, and will not be
    AVAILABLE = 1
    NOT_YET_AVAILABLE = 2


def create_trial(
    path: str | Path, name: str | None = None, range_steps: tuple[int | None, int | None] | None = None
) -> Trial:
    """Return the trial of a folder; it may be empty as yet.

    Args:
        range_steps: global steps to look at, from the first on, up to and not including the second.

    Raises: UnsupportedError for s3:// paths, ConfigurationError.
    """
    if str(path).startswith("s3://"):
        raise UnsupportedError(f"{path}: trials of S3 are not supported yet; download it and give the folder")
    return Trial(LocalFiles(Path(path)), name=name or Path(path).name, range_steps=range_steps, path=str(path))


class Trial:
    """A training by its files."""

    def __init__(
        self,
        files: Files,
        *,
        name: str,
        range_steps: tuple[int | None, int | None] | None = None,
        path: str = "",
    ) -> None:
        start, end = range_steps or (None, None)
        if start is not None and end is not None and end <= start:
            raise ConfigurationError(f"range_steps is {range_steps}; expected a first step below the last")
        self.name, self.path, self.range_steps = name, path or str(files), range_steps
        self.dynamic_refresh = True  # False while a rule looks, so that it sees one state
        self.logger = _log
        self.damaged: dict[str, str] = {}  # files that were refused, and why
        self.written_at: dict[int, float] = {}  # seconds since 1970, by global step
        self._files = files
        self._first, self._end = start or 0, end
        self._known: set[str] = set()
        self._tensors: dict[str, Tensor] = {}
        self._aliases: dict[str, str] = {}
        self._steps: dict[int, dict[str, StepIndex]] = {}  # by global step and worker
        self._mode_steps: dict[ModeKeys, dict[int, int]] = {}  # global step by mode and mode step
        self._last_of: dict[str, int] = {}  # each worker's last step
        self._num_workers = 1
        self._manager = CollectionManager()
        self._has_ended = False
        self._values: dict[tuple[int, str, str], bytes] = {}

    def __repr__(self) -> str:
        return f"Trial({self.name!r}, {self.path!r}, {len(self._steps)} steps, {len(self._tensors)} tensors)"

    # What there is.

    def tensor_names(
        self,
        *,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        regex: str | Iterable[str] | None = None,
        collection: str | Collection | None = None,
    ) -> list[str]:
        """Return names of tensors, sorted: all, or those of a step, of a phase, that match, of a collection.

        Raises: ConfigurationError where both `regex` and `collection` are given.
        """
        if regex is not None and collection is not None:
            raise ConfigurationError("tensor_names takes regex or collection, not both")
        self.refresh()
        if step is not None:
            found = self.known_global_step(mode, step)
            of_step = {} if found is None else self._steps.get(found, {})
            names = {name for index in of_step.values() for name in index.tensors}
        elif mode is not ModeKeys.GLOBAL:
            of_mode = self._mode_steps.get(mode, {}).values()
            names = {name for one in of_mode for index in self._steps[one].values() for name in index.tensors}
        else:
            names = set(self._tensors)
        if collection is not None:
            one = self.collection(collection) if isinstance(collection, str) else collection
            names = {name for name in names if one.matches(name, self._aliases.get(name, ""))}
        if regex is not None:
            asked = Collection("asked", regex)
            names = {name for name in names if asked.matches(name, self._aliases.get(name, ""))}
        return sorted(names)

    def tensor(self, tname: str) -> Tensor:
        """Return a tensor. Raises: TensorUnavailable."""
        if not self.has_tensor(tname):
            raise TensorUnavailable(tname)
        return self._tensors[tname]

    def has_tensor(self, tname: str) -> bool:
        """Whether some step has it."""
        if tname not in self._tensors:
            self.refresh()
        return tname in self._tensors

    def steps(self, mode: ModeKeys | None = None, show_incomplete_steps: bool = False) -> list[int]:
        """Return the steps that were saved, of all phases or as one phase counts them."""
        self.refresh()
        return self.steps_among(self._steps, mode or ModeKeys.GLOBAL, with_incomplete=show_incomplete_steps)

    def modes(self) -> list[ModeKeys]:
        """Return the phases that steps were saved in."""
        self.refresh()
        return sorted({self.mode(step) for step in self._steps}, key=lambda mode: mode.value)

    def mode(self, global_step: int) -> ModeKeys:
        """Return a step's phase. Raises: StepUnavailable and its like."""
        return self._index(global_step).mode

    def mode_step(self, global_step: int) -> int:
        """Return a step's number in its phase. Raises: StepUnavailable and its like."""
        return self._index(global_step).mode_step

    def global_step(self, mode: ModeKeys, mode_step: int) -> int:
        """Return the number among all steps of a phase's step. Raises: StepUnavailable and its like."""
        found = self.known_global_step(mode, mode_step)
        if found is None:
            self.check_step(mode_step, mode)
            raise StepUnavailable(mode_step, mode)
        return found

    def workers(self) -> list[str]:
        """Return the workers that save."""
        self.refresh()
        return sorted(self._last_of, key=lambda worker: int(worker.removeprefix("worker_")))

    def collections(self) -> dict[str, Collection]:
        """Return the collections by name, whether they were saved or not."""
        self.refresh()
        return self._manager.collections

    def collection(self, coll_name: str) -> Collection:
        """Return a collection; one that holds nothing where there is none of this name."""
        self.refresh()
        return self._manager.get(coll_name)

    @property
    def has_ended(self) -> bool:
        """Whether training has ended, as far as was seen."""
        return self._has_ended

    @property
    def last_complete_step(self) -> int:
        """The last step that all workers have passed, -1 for none."""
        return max(self.steps_among(self._steps, ModeKeys.GLOBAL, with_incomplete=False), default=-1)

    def alias(self, tname: str) -> str:
        """Return the other name that expressions match: a tensor's with its module's class; empty if it has none."""
        return self._aliases.get(tname, "")

    # What is to come.

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """Return what is known of a step."""
        self.refresh()
        return self._state(step, mode)

    def wait_for_steps(
        self, required_steps: Iterable[int], mode: ModeKeys = ModeKeys.GLOBAL, limit_s: float = WAIT_LIMIT_S
    ) -> None:
        """Wait until steps were saved.

        Raises: StepUnavailable if one is passed without, NoMoreData if training ends before it, StepNotYetAvailable
            after `limit_s` seconds.
        """
        deadline = time.monotonic() + limit_s
        for step in required_steps:
            while (state := self.has_passed_step(step, mode)) is StepState.NOT_YET_AVAILABLE:
                if time.monotonic() > deadline:
                    raise StepNotYetAvailable(step, mode)
                if not self.dynamic_refresh:
                    raise StepNotYetAvailable(step, mode)
                time.sleep(_PAUSE_S)
            if state is StepState.UNAVAILABLE:
                self.check_step(step, mode)

    def check_step(self, step: int, mode: ModeKeys) -> None:
        """Return if a step is there. Raises: StepNotYetAvailable, StepUnavailable, NoMoreData."""
        if self.known_global_step(mode, step) is not None:
            return
        if self._state(step, mode) is StepState.NOT_YET_AVAILABLE:
            raise StepNotYetAvailable(step, mode)
        last = max(self._steps if mode is ModeKeys.GLOBAL else self._mode_steps.get(mode, {}), default=None)
        if self._has_ended and (last is None or step > last):
            raise NoMoreData(step, mode, last)
        raise StepUnavailable(step, mode)

    # What rules and tensors ask for.

    def known_global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """Return the number among all steps of a phase's step, None if it has not been seen."""
        if mode is ModeKeys.GLOBAL:
            return mode_step if mode_step in self._steps else None
        return self._mode_steps.get(mode, {}).get(mode_step)

    def steps_among(self, steps: Iterable[int], mode: ModeKeys, *, with_incomplete: bool) -> list[int]:
        """Return those of some global steps that are of a phase, as it counts them, sorted."""
        passed = self._passed()
        found = [step for step in steps if with_incomplete or step <= passed]
        if mode is ModeKeys.GLOBAL:
            return sorted(found)
        indexes = [next(iter(self._steps[step].values())) for step in found]
        return sorted(index.mode_step for index in indexes if index.mode is mode)

    def values_of(self, step: int, worker: str, entry: TensorEntry) -> bytes:
        """Return a tensor's bytes. Raises: TensorFileError, OSError."""
        key = (step, worker, entry.name)
        if key in self._values:
            return self._values[key]
        values = read_values(self._files, _place(step, worker), self._steps[step][worker], entry)
        if len(values) <= _KEPT_BYTES:
            self._values[key] = values
        return values

    def refresh(self) -> None:
        """Look for new files; does nothing within `no_refresh` or once all is known. Raises: OSError."""
        if self._has_ended or not self.dynamic_refresh:
            return
        for name in self._files.names(COLLECTIONS):
            if WORKER_FILE.fullmatch(name):
                self._take_collections(f"{COLLECTIONS}/{name}")
        # After collections, which say how many workers there are, and before steps: all of them are then seen.
        has_ended = self._look_for_end()
        oldest = max(self._passed(), self._first) // STEPS_OF_A_FOLDER
        for group in self._files.names(STEPS):
            if GROUP.fullmatch(group) and int(group) >= oldest:
                for name in self._files.names(f"{STEPS}/{group}"):
                    if name not in self._known and STEP_FILE.fullmatch(name):
                        self._known.add(name)
                        self._take_step(f"{STEPS}/{group}/{name}")
        self._has_ended = has_ended

    def _look_for_end(self) -> bool:
        if END_OF_JOB in self._files.names(""):
            return True
        ended = [name for name in self._files.names(ENDED) if WORKER_FILE.fullmatch(name)]
        return len(ended) >= self._num_workers and bool(self._files.names(COLLECTIONS))

    def _take_collections(self, name: str) -> None:
        try:
            document: dict[str, Any] = json.loads(self._files.read(name, 0, _MAX_JSON))
            self._num_workers = max(1, int(document["num_workers"]))
            for coll_name, one in document["collections"].items():
                self._manager.add(Collection(coll_name, one["include_regex"], one["tensor_names"]))
            self.damaged.pop(name, None)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, TensorFileError) as error:
            self._refuse(name, error)

    def _take_step(self, name: str) -> None:
        try:
            index = read_index(self._files, name)
            if not name.endswith(_place(index.step, index.worker)):
                raise TensorFileError(f"{name} says that it is step {index.step} of {index.worker}")
        except (TensorFileError, FileNotFoundError) as error:
            self._refuse(name, error)
            if (match := STEP_FILE.search(name)) is not None:
                self._pass(match[2], int(match[1]))
            return
        self._pass(index.worker, index.step)
        self._num_workers = max(self._num_workers, index.num_workers)
        if index.step < self._first or (self._end is not None and index.step >= self._end):
            return
        self._steps.setdefault(index.step, {})[index.worker] = index
        self._mode_steps.setdefault(index.mode, {})[index.mode_step] = index.step
        self.written_at[index.step] = max(index.written_at, self.written_at.get(index.step, 0.0))
        for entry in index.tensors.values():
            self._tensors.setdefault(entry.name, Tensor(entry.name, self)).add(index.step, index.worker, entry)
            if entry.alias:
                self._aliases[entry.name] = entry.alias

    def _pass(self, worker: str, step: int) -> None:
        self._last_of[worker] = max(step, self._last_of.get(worker, -1))

    def _passed(self) -> int:
        """Return the step that all workers have passed or saved, -1 for none."""
        if self._has_ended:
            return max(self._last_of.values(), default=-1)
        return min(self._last_of.values()) if len(self._last_of) >= self._num_workers else -1

    def _state(self, step: int, mode: ModeKeys) -> StepState:
        found, passed = self.known_global_step(mode, step), self._passed()
        if found is not None:
            return StepState.AVAILABLE if found <= passed else StepState.NOT_YET_AVAILABLE
        if self._has_ended:
            return StepState.UNAVAILABLE
        seen = (one for one in self._mode_steps.get(mode, {}).items() if one[1] <= passed)
        last = passed if mode is ModeKeys.GLOBAL else max((mode_step for mode_step, _ in seen), default=-1)
        return StepState.UNAVAILABLE if step <= last else StepState.NOT_YET_AVAILABLE

    def _index(self, global_step: int) -> StepIndex:
        self.refresh()
        self.check_step(global_step, ModeKeys.GLOBAL)
        return next(iter(self._steps[global_step].values()))

    def _refuse(self, name: str, error: Exception) -> None:
        if name not in self.damaged:
            _log.warning("debugger: %s is left out: %s", name, error)
        self.damaged[name] = str(error)


@contextlib.contextmanager
def no_refresh(trials: Trial | list[Trial]) -> Iterator[Trial | list[Trial]]:
    """Have trials stay as they are while something looks at them."""
    with _refreshing(trials, False):
        yield trials


@contextlib.contextmanager
def refresh(trials: Trial | list[Trial]) -> Iterator[Trial | list[Trial]]:
    """Have trials look for new files within a block that is in `no_refresh`."""
    with _refreshing(trials, True):
        yield trials


@contextlib.contextmanager
def _refreshing(trials: Trial | list[Trial], wanted: bool) -> Iterator[None]:
    several = trials if isinstance(trials, list) else [trials]
    before = [trial.dynamic_refresh for trial in several]
    for trial in several:
        trial.dynamic_refresh = wanted
    try:
        yield
    finally:
        for trial, was in zip(several, before, strict=True):
            trial.dynamic_refresh = was


def mark_ended(path: str | Path) -> None:
    """Say that a training has ended, for one that could not say so itself. Raises: OSError."""
    (Path(path) / END_OF_JOB).touch()


def _place(step: int, worker: str) -> str:
    return f"{STEPS}/{step // STEPS_OF_A_FOLDER:09d}/{step:012d}.{worker}.tensors"
