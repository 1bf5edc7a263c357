"""What a training has saved so far, while it goes on or after. The names are smdebug's.

A step is there once each worker has saved it, or has saved a later one: workers write in order, so a worker that has
passed a step will not save it any more. `ends` says when training has ended.
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
from clary.train.debugger.ends import Ends
from clary.train.debugger.errors import (
    ConfigurationError,
    NoMoreData,
    StepNotYetAvailable,
    StepUnavailable,
    TensorFileError,
    TensorUnavailable,
)
from clary.train.debugger.files import (
    COLLECTIONS,
    END_OF_JOB,
    GROUP,
    STEP_FILE,
    STEPS,
    STEPS_OF_A_FOLDER,
    WORKER_FILE,
    Files,
    LocalFiles,
)
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.s3_files import SCHEME, open_s3_files
from clary.train.debugger.saved_tensor import Tensor
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, read_index, read_values

WAIT_LIMIT_S = 28 * 24 * 3600.0  # of `wait_for_steps`; no job is longer
_PAUSE_S = 0.5  # between two looks
_PREPARED = 64  # files that are told to be read next
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
    """Return the trial of a folder, or of a prefix of S3, `s3://bucket/prefix`; it may be empty as yet.

    Args:
        range_steps: global steps to look at, from the first on, up to and not including the second.

    Raises: ConfigurationError, also where nothing here can read S3.
    """
    if str(path).startswith(SCHEME):
        bucket, _, prefix = str(path).removeprefix(SCHEME).partition("/")
        return S3Trial(name or Path(str(path)).name, bucket, prefix, range_steps)
    return LocalTrial(name or Path(path).name, path, range_steps)


class Trial:
    """A training by its files.

    Args:
        since: seconds since 1970; what was saved before is of an earlier try, and left out.
        ends_by_mark: whether training ends once agents say so, whatever workers say.
    """

    def __init__(
        self,
        files: Files,
        *,
        name: str,
        range_steps: tuple[int | None, int | None] | None = None,
        path: str = "",
        since: float = 0.0,
        ends_by_mark: bool = False,
    ) -> None:
        start, end = range_steps or (None, None)
        if start is not None and end is not None and end <= start:
            raise ConfigurationError(f"range_steps is {range_steps}; expected a first step below the last")
        self.name, self.path, self.range_steps = name, path or str(files), range_steps
        self.dynamic_refresh = True  # False while a rule looks, so that it sees one state
        self.logger = _log
        self.num_restarts = 0  # programs that have taken another one's place
        self.damaged: dict[str, str] = {}  # files that were refused, and why
        self.written_at: dict[int, float] = {}  # seconds since 1970, by global step
        self._files = files
        self._first, self._end = start or 0, end
        self._since = since
        self._known: dict[str, str] = {}  # marks of files that were read
        self._tensors: dict[str, Tensor] = {}
        self._aliases: dict[str, str] = {}
        self._steps: dict[int, dict[str, StepIndex]] = {}  # by global step and worker
        self._mode_steps: dict[ModeKeys, dict[int, int]] = {}  # global step by mode and mode step
        self._last_of: dict[str, int] = {}  # each worker's last step
        self._num_workers = 1
        self._manager = CollectionManager()
        self._ends = Ends(by_mark=ends_by_mark)
        self._has_ended = False
        self._next_look_s = 0.0
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
                time.sleep(max(_PAUSE_S, self._files.interval_s))
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
        """Look for new files; does nothing within `no_refresh`, once all is known, or right after the last look.

        Raises: OSError; what was seen until then is kept.
        """
        now_s = time.monotonic()
        if self._has_ended or not self.dynamic_refresh or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + self._files.interval_s
        for name, mark in self._files.listing(COLLECTIONS).items():
            if (match := WORKER_FILE.fullmatch(name)) is not None:
                self._take_collections(match[1], f"{COLLECTIONS}/{name}", mark)
        # After collections, which say how many workers there are, and before steps: all of them are then seen.
        has_ended = self._ends.look(self._files)
        self._look_for_steps()
        self._has_ended = has_ended

    def _look_for_steps(self) -> None:
        """Look from the step on that each worker has passed that has said that it saves: what is before is known."""
        workers = self._last_of.keys() | self._ends.workers
        begin = max(min((self._last_of.get(worker, 0) for worker in workers), default=0), self._first)
        for group in self._files.listing(STEPS):
            if GROUP.fullmatch(group) is None or int(group) < begin // STEPS_OF_A_FOLDER:
                continue
            found = self._files.listing(f"{STEPS}/{group}", f"{begin:012d}")
            new = [name for name in found if STEP_FILE.fullmatch(name) and self._known.get(name) != found[name]]
            for at in range(0, len(new), _PREPARED):
                some = new[at : at + _PREPARED]
                self._files.prepare([f"{STEPS}/{group}/{name}" for name in some])
                for name in some:
                    self._take_step(f"{STEPS}/{group}/{name}")
                    self._known[name] = found[name]

    def _take_collections(self, worker: str, name: str, mark: str) -> None:
        if self._known.get(name) == mark:
            return
        began_at, num_ends = 0.0, 1
        try:
            document: dict[str, Any] = json.loads(self._files.read(name, 0, _MAX_JSON))
            began_at = float(document.get("began_at", 0.0))
            if began_at < self._since:
                self._known[name] = mark
                return
            self._num_workers = max(1, int(document["num_workers"]))
            num_ends = int(document.get("num_ends", self._num_workers))
            for coll_name, one in document["collections"].items():
                self._manager.add(Collection(coll_name, one["include_regex"], one["tensor_names"]))
            self.damaged.pop(name, None)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, TensorFileError) as error:
            self._refuse(name, error)
        except FileNotFoundError:
            return  # it is being replaced
        self._known[name] = mark
        if self._ends.begin(worker, began_at, num_ends):
            self._forget(worker)

    def _forget(self, worker: str) -> None:
        """Let go of what an earlier program has saved as this worker: another one saves in its place."""
        self.num_restarts += 1
        self._last_of.pop(worker, None)
        self._known = {name: mark for name, mark in self._known.items() if f".{worker}." not in name}
        self._values = {key: values for key, values in self._values.items() if key[1] != worker}
        for step in [step for step, indexes in self._steps.items() if worker in indexes]:
            index = self._steps[step].pop(worker)
            for entry in index.tensors.values():
                self._tensors[entry.name].remove(step, worker)
            if not self._steps[step]:
                del self._steps[step]
                if self._mode_steps.get(index.mode, {}).get(index.mode_step) == step:
                    del self._mode_steps[index.mode][index.mode_step]

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
        self.damaged.pop(name, None)
        if index.written_at < max(self._since, self._ends.began_at(index.worker)):
            return  # of an earlier program, and not replaced yet
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
        if len(self._last_of) < self._num_workers or self._ends.workers - self._last_of.keys():
            return -1
        return min(self._last_of.values())

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


class LocalTrial(Trial):
    """The trial of a folder. `check`, `index_mode` and `cache` are taken for smdebug's sake."""

    def __init__(
        self,
        name: str,
        dirname: str | Path,
        range_steps: tuple[int | None, int | None] | None = None,
        check: bool = False,
        index_mode: bool = True,
        cache: bool = False,
    ) -> None:
        super().__init__(LocalFiles(Path(dirname)), name=name, range_steps=range_steps, path=str(dirname))


class S3Trial(Trial):
    """The trial of a prefix in S3. `check`, `index_mode` and `cache` are taken for smdebug's sake.

    Raises: ConfigurationError, also where nothing here can read S3.
    """

    def __init__(
        self,
        name: str,
        bucket_name: str,
        prefix_name: str,
        range_steps: tuple[int | None, int | None] | None = None,
        check: bool = False,
        index_mode: bool = True,
        cache: bool = False,
    ) -> None:
        uri = f"{SCHEME}{bucket_name}/{prefix_name}"
        super().__init__(open_s3_files(uri), name=name, range_steps=range_steps, path=uri)


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
