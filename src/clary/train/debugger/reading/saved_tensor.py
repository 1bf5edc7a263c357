"""One tensor of a trial: its values at the steps that saved it, as numpy arrays. The names are smdebug's.

numpy is imported when the first value is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from clary.train.debugger.errors import (
    ConfigurationError,
    InvalidWorker,
    ShapeUnavailableForStep,
    TensorUnavailableForStep,
)
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reduction_config import ALL, NORMS
from clary.train.debugger.tensor_files import TensorEntry


class StepReader(Protocol):
    """The interface of a trial to its tensors. Steps without a mode are global steps."""

    def refresh(self) -> None:
        """Read the files saved since the last call."""

    def steps_among(self, steps: Iterable[int], mode: ModeKeys, *, with_incomplete: bool) -> list[int]:
        """Return the step numbers in `mode` of the given global steps that belong to `mode`.

        Args: as `SavedSteps.among`.
        """

    def known_global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """Return the global step of a phase's step; None if no file has it yet."""

    def global_step(self, mode: ModeKeys, mode_step: int) -> int:
        """Return the global step of a step that `check_step` has accepted."""

    def check_step(self, step: int, mode: ModeKeys) -> None:
        """Raise StepNotYetAvailable, StepUnavailable or NoMoreData for a step that has no values."""

    def values_of(self, step: int, worker: str, entry: TensorEntry) -> bytes:
        """Return the bytes of a worker's tensor at a step.

        Args:
            step: a global step.
            worker: name of a worker that has saved the tensor.
            entry: the tensor's entry in that worker's file.
        """


class Tensor:
    """A named tensor. Step numbers count the steps of `mode`; GLOBAL counts all phases together.

    `worker=None` means the first worker that has saved the tensor at the step.
    """

    def __init__(self, name: str, trial: StepReader) -> None:
        self.name, self.trial = name, trial
        self._entries: dict[int, dict[str, TensorEntry]] = {}  # global step -> worker -> entry

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, steps={sorted(self._entries)})"

    def add(self, step: int, worker: str, entry: TensorEntry) -> None:
        """Add a file's entry of the tensor; the trial calls it.

        Args:
            step: a global step.
            worker: worker that has saved the tensor; its earlier entry is replaced.
            entry: the tensor's entry in that worker's file.
        """
        self._entries.setdefault(step, {})[worker] = entry

    def remove(self, step: int, worker: str) -> None:
        """Remove one worker's entry at a step; the trial calls it."""
        self._entries.get(step, {}).pop(worker, None)
        if not self._entries.get(step):
            self._entries.pop(step, None)

    def steps(self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False) -> list[int]:
        """Return the steps that have the tensor.

        Args:
            show_incomplete_steps: whether to include steps that some worker has not saved yet.
        """
        self.trial.refresh()
        return self.trial.steps_among(self._entries, mode, with_incomplete=show_incomplete_steps)

    def workers(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[str]:
        """Return the workers that have saved the tensor at a step. Raises: as `check_step`."""
        return sorted(self._at(step_num, mode), key=_by_number)

    def value(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None) -> Any:
        """Return the tensor's values at a step as a numpy array; bfloat16 becomes float32.

        Args:
            step_num: number of the step in `mode`.
            mode: phase whose steps are counted; GLOBAL for all phases together.
            worker: None for the first worker that has saved the tensor.
        Raises: TensorUnavailableForStep, InvalidWorker, StepNotYetAvailable, StepUnavailable, NoMoreData;
            TensorFileError for a damaged file; OSError.
        """
        from clary.train.debugger.reading.arrays import to_array  # saves 32 ms in programs that read no values

        chosen, entry = self._entry(step_num, mode, worker)
        if entry.start is None:
            raise TensorUnavailableForStep(self.name, step_num, mode, has_reductions=bool(entry.reductions))
        values = self.trial.values_of(self.trial.global_step(mode, step_num), chosen, entry)
        return to_array(values, entry.dtype, entry.shape or ())

    def values(self, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None) -> dict[int, Any]:
        """Return the tensor's values at all steps that have them, by step."""
        found = {}
        for step in self.steps(mode):
            entries = self._at(step, mode)
            if (worker is None or worker in entries) and any(entry.start is not None for entry in entries.values()):
                found[step] = self.value(step, mode, worker)
        return found

    def reduction_value(
        self,
        step_num: int,
        reduction_name: str,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
        abs: bool = False,  # noqa: A002 - smdebug's word
    ) -> Any:
        """Return a reduction at a step as a numpy number: as saved, or else computed from the values.

        Args:
            reduction_name: such as `mean`, `l2` or `variance`.
            abs: whether to reduce absolute values.
            step_num, mode, worker: as for `value`.
        Raises: as `value`; ConfigurationError for an unknown reduction.
        """
        import numpy as np

        from clary.train.debugger.reading.arrays import reduce  # saves 32 ms in programs that read no values

        name = f"abs_{reduction_name}" if abs else reduction_name
        if name not in ALL:
            raise ConfigurationError(f"there is no reduction {name!r}; there are {', '.join(sorted(ALL))}")
        _, entry = self._entry(step_num, mode, worker)
        for saved in (name, reduction_name if reduction_name in NORMS else name):
            if saved in entry.reductions:
                return np.float64(entry.reductions[saved])
        if entry.start is None:
            raise TensorUnavailableForStep(self.name, step_num, mode, has_reductions=bool(entry.reductions))
        return reduce(self.value(step_num, mode, worker), name)

    def reduction_values(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[tuple[str, bool], Any]:
        """Return the reductions saved at a step, by (name, whether of absolute values).

        Args: as `value`.
        """
        import numpy as np

        _, entry = self._entry(step_num, mode, worker)
        return {
            (name.removeprefix("abs_"), name.startswith("abs_")): np.float64(value)
            for name, value in entry.reductions.items()
        }

    def shape(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None) -> tuple[int, ...]:
        """Return the tensor's shape at a step.

        Args: as `value`.
        Raises: ShapeUnavailableForStep and the errors of `value`.
        """
        try:
            _, entry = self._entry(step_num, mode, worker)
        except TensorUnavailableForStep as error:
            raise ShapeUnavailableForStep(self.name, step_num, mode) from error
        if entry.shape is None:
            raise ShapeUnavailableForStep(self.name, step_num, mode)
        return entry.shape

    def shapes(self, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None) -> dict[int, tuple[int, ...]]:
        """Return the tensor's shapes at all steps that have it, by step.

        Args:
            worker: leaves out steps at which this worker has not saved the tensor; None for the first worker of each.
        """
        steps = self.steps(mode)
        return {
            step: self.shape(step, mode, worker) for step in steps if worker is None or worker in self._at(step, mode)
        }

    def prev_steps(self, step: int, n: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[int]:
        """Return the last `n` steps up to and including `step` that have the tensor, newest first.

        Args:
            step: number of the step in `mode`.
            n: largest number of steps.
            mode: phase whose steps are counted; GLOBAL for all phases together.
        """
        return [one for one in reversed(self.steps(mode)) if one <= step][:n]

    def _entry(self, step: int, mode: ModeKeys, worker: str | None) -> tuple[str, TensorEntry]:
        entries = self._at(step, mode)
        if worker is None:
            worker = min(entries, key=_by_number)
        if worker not in entries:
            raise InvalidWorker(worker)
        return worker, entries[worker]

    def _at(self, step: int, mode: ModeKeys) -> Mapping[str, TensorEntry]:
        if self.trial.known_global_step(mode, step) not in self._entries:
            self.trial.refresh()
        self.trial.check_step(step, mode)
        found = self._entries.get(self.trial.global_step(mode, step))
        if not found:
            raise TensorUnavailableForStep(self.name, step, mode)
        return found


def _by_number(worker: str) -> tuple[int, str]:
    return len(worker), worker  # sorts worker_2 before worker_10
