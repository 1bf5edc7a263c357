"""The saved tensors of a training, during training or after it. The names are smdebug's.

Where: rules and scripts use it. `trial_reader` reads new files, `saved_steps` tells which steps are complete,
`tensor_catalog` has the tensors.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping

from clary.train.debugger.collection import Collection
from clary.train.debugger.errors import (
    ConfigurationError,
    NoMoreData,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
)
from clary.train.debugger.files import Files
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.saved_steps import StepState
from clary.train.debugger.reading.saved_tensor import Tensor
from clary.train.debugger.reading.tensor_catalog import TensorCatalog
from clary.train.debugger.reading.trial_reader import TrialReader
from clary.train.debugger.tensor_files import StepIndex, TensorEntry

WAIT_LIMIT_S = 28 * 24 * 3600.0  # default limit of `wait_for_steps`; no job is longer
_PAUSE_S = 0.5  # seconds between two looks for new files
_log = logging.getLogger("clary.debugger")


class Trial:
    """The saved tensors of one training, read from its files.

    Args:
        range_steps: global steps to look at, from the first on, up to and not including the second.
        since: seconds since 1970; older files belong to an earlier try and are left out.
        ends_by_mark: whether only agents' end marks end a training, not workers' marks.
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
        self.dynamic_refresh = True  # False while a rule reads, so that the trial does not change meanwhile
        self.logger = _log
        self._files, self._next_look_s = files, 0.0
        self._tensors = TensorCatalog(files, functools.partial(Tensor, trial=self))
        self._reader = TrialReader(
            files, self._tensors, first_step=start or 0, end_step=end, since=since, ends_by_mark=ends_by_mark
        )
        self._steps = self._reader.steps

    def __repr__(self) -> str:
        return f"Trial({self.name!r}, {self.path!r}, {len(self._steps)} steps, {len(self._tensors.by_name)} tensors)"

    # Queries of tensors and steps.

    def tensor_names(
        self,
        *,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        regex: str | Iterable[str] | None = None,
        collection: str | Collection | None = None,
    ) -> list[str]:
        """Return the sorted names of tensors, optionally only of a step, a phase, an expression or a collection.

        Args:
            step: number of the step in `mode`; None for all steps.
            mode: phase; GLOBAL for all phases.
            regex: one or more expressions, any of which may match the name or its alias.
            collection: name of a collection, or a Collection.
        Raises: ConfigurationError if both `regex` and `collection` are given.
        """
        if regex is not None and collection is not None:
            raise ConfigurationError("tensor_names takes regex or collection, not both")
        self.refresh()
        if step is not None:
            found = self._steps.global_step(mode, step)
            names = set() if found is None else self._names_of([found])
        elif mode is not ModeKeys.GLOBAL:
            names = self._names_of(self._steps.of_mode(mode))
        else:
            names = set(self._tensors.by_name)
        if collection is not None:
            one = self._reader.collections.get(collection) if isinstance(collection, str) else collection
            names = {name for name in names if one.matches(name, self.alias(name))}
        if regex is not None:
            asked = Collection("asked", regex)
            names = {name for name in names if asked.matches(name, self.alias(name))}
        return sorted(names)

    def tensor(self, tname: str) -> Tensor:
        """Return a tensor. Raises: TensorUnavailable."""
        if not self.has_tensor(tname):
            raise TensorUnavailable(tname)
        return self._tensors.by_name[tname]

    def has_tensor(self, tname: str) -> bool:
        """Whether some step has the tensor."""
        if tname not in self._tensors.by_name:
            self.refresh()
        return tname in self._tensors.by_name

    def steps(self, mode: ModeKeys | None = None, show_incomplete_steps: bool = False) -> list[int]:
        """Return the saved steps: global numbers, or a phase's steps by their numbers in the phase."""
        self.refresh()
        return self.steps_among(self._steps, mode or ModeKeys.GLOBAL, with_incomplete=show_incomplete_steps)

    def modes(self) -> list[ModeKeys]:
        """Return the phases of the saved steps."""
        self.refresh()
        return sorted(self._steps.modes, key=lambda mode: mode.value)

    def mode(self, global_step: int) -> ModeKeys:
        """Return a step's phase. Raises: as `check_step`."""
        return self._index(global_step).mode

    def mode_step(self, global_step: int) -> int:
        """Return a step's number in its phase. Raises: as `check_step`."""
        return self._index(global_step).mode_step

    @property
    def _global_to_mode(self) -> PhasesOfSteps:
        """Step -> its phase and its number there; rules of public examples read this attribute of smdebug."""
        return PhasesOfSteps(self)

    def global_step(self, mode: ModeKeys, mode_step: int) -> int:
        """Return the global number of a phase's step. Raises: as `check_step`."""
        found = self.known_global_step(mode, mode_step)
        if found is None:
            self.check_step(mode_step, mode)
            raise StepUnavailable(mode_step, mode)
        return found

    def workers(self) -> list[str]:
        """Return the workers that save."""
        self.refresh()
        return self._steps.workers

    def collections(self) -> dict[str, Collection]:
        """Return the collections by name, whether they were saved or not."""
        self.refresh()
        for one in self._reader.collections:
            self._note_names(one)
        return self._reader.collections.collections

    def collection(self, coll_name: str) -> Collection:
        """Return the collection with a name; an empty collection if it does not exist."""
        self.refresh()
        one = self._reader.collections.get(coll_name)
        self._note_names(one)
        return one

    @property
    def has_ended(self) -> bool:
        """Whether training has ended, according to the files seen so far."""
        return self._steps.has_ended

    @property
    def loaded_all_steps(self) -> bool:
        """Whether training has ended and all its steps are known; looks for new files. Raises: as `refresh`."""
        self.refresh()
        return self._steps.has_ended

    @property
    def num_restarts(self) -> int:
        """Number of programs that have replaced an earlier program."""
        return self._reader.num_restarts

    @property
    def damaged(self) -> dict[str, str]:
        """Refused file -> the reason."""
        return self._reader.damaged

    @property
    def written_at(self) -> dict[int, float]:
        """Global step -> time of its writing, in seconds since 1970."""
        return self._steps.written_at

    @property
    def last_complete_step(self) -> int:
        """The last step that all workers have passed, or -1."""
        return max(self.steps_among(self._steps, ModeKeys.GLOBAL, with_incomplete=False), default=-1)

    def next_step(self, step: int) -> int:
        """Return the first saved global step from `step` on that all workers have passed, or -1."""
        return min(
            self.steps_among((one for one in self._steps if one >= step), ModeKeys.GLOBAL, with_incomplete=False),
            default=-1,
        )

    def alias(self, tname: str) -> str:
        """Return a tensor's alias, or ""; it contains the module's class, and expressions also match it."""
        return self._tensors.alias(tname)

    # Waiting for steps.

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """Return the state of a step."""
        self.refresh()
        return self._steps.state(step, mode)

    def wait_for_steps(
        self, required_steps: Iterable[int], mode: ModeKeys = ModeKeys.GLOBAL, limit_s: float = WAIT_LIMIT_S
    ) -> None:
        """Wait until all workers have saved or passed steps.

        Args:
            required_steps: numbers of the steps in `mode`.
            mode: phase whose steps are counted; GLOBAL for all phases together.
            limit_s: longest wait for all steps together.
        Raises: StepUnavailable if a step is passed without being saved, NoMoreData if training ends before it,
            StepNotYetAvailable after `limit_s` seconds, or at once within `no_refresh`.
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
        """Check that a step was saved. Raises: StepNotYetAvailable, StepUnavailable, NoMoreData."""
        self._steps.check(step, mode)

    def refresh(self) -> None:
        """Look for new files; does nothing within `no_refresh`, once all steps are known, or right after the last look.

        Raises: OSError; files seen until then are kept.
        """
        now_s = time.monotonic()
        if self.has_ended or not self.dynamic_refresh or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + self._files.interval_s
        self._reader.look()

    # For tensors.

    def known_global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """Return the global number of a phase's step; None if no file has it yet."""
        return self._steps.global_step(mode, mode_step)

    def steps_among(self, steps: Iterable[int], mode: ModeKeys, *, with_incomplete: bool) -> list[int]:
        """Return the sorted step numbers, within a phase, of the given global steps that belong to the phase.

        Args: as `SavedSteps.among`.
        """
        return self._steps.among(steps, mode, with_incomplete=with_incomplete)

    def values_of(self, step: int, worker: str, entry: TensorEntry) -> bytes:
        """Return a tensor's bytes.

        Args: as `StepReader.values_of`.
        Raises: TensorFileError, OSError.
        """
        return self._tensors.read(self._steps.of_workers(step)[worker], entry)

    def _note_names(self, collection: Collection) -> None:
        for name in self._tensors.by_name:
            if collection.matches(name, self.alias(name)):
                collection.note_saved(name)

    def _names_of(self, steps: Iterable[int]) -> set[str]:
        return {name for step in steps for index in self._steps.of_workers(step).values() for name in index.tensors}

    def _index(self, global_step: int) -> StepIndex:
        self.refresh()
        self.check_step(global_step, ModeKeys.GLOBAL)
        return self._steps.first_index(global_step)


class PhasesOfSteps(Mapping[int, tuple[ModeKeys, int]]):
    """Global step -> (phase, number in the phase) of a trial's steps."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def __getitem__(self, step: int) -> tuple[ModeKeys, int]:
        """Return the phase and number of a step. Raises: KeyError."""
        try:
            return self._trial.mode(step), self._trial.mode_step(step)
        except (NoMoreData, StepNotYetAvailable, StepUnavailable) as error:
            raise KeyError(step) from error

    def __iter__(self) -> Iterator[int]:
        return iter(self._trial.steps())

    def __len__(self) -> int:
        return len(self._trial.steps())
