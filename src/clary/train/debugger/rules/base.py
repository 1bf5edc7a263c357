"""Helpers shared by built-in rules: parsing text parameters, choosing tensors, losses as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from clary.train.debugger.errors import ConfigurationError
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.saved_tensor import Tensor
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.reduction_config import as_bool
from clary.train.debugger.rule import Finding, Rule

T = TypeVar("T")
Names = str | Iterable[str] | None
_WITHOUT_TRAINING = (ModeKeys.EVAL, ModeKeys.PREDICT)


class BuiltInRule(Rule):
    """A rule of this library; `invoke_at_step` returns a Finding or None."""

    def __init__(self, base_trial: Trial, *, other_trials: Iterable[Trial] | None = None) -> None:
        super().__init__(base_trial, other_trials=other_trials)
        self._has_looked = False

    def invoke(self, step: int) -> None:
        """Wait for a global step and look at it; raises as `Rule.invoke`."""
        self._has_looked = False
        super().invoke(step)

    def has_looked(self) -> bool:
        """Whether the step that was invoked last had the rule's tensors."""
        return self._has_looked

    def looks_at(self, found: Sequence[T]) -> Sequence[T]:
        """Record the tensors of a step that a rule looks at, and return them; a step without any does not count."""
        self._has_looked = self._has_looked or bool(found)
        return found

    def chosen(
        self, step: int, collection_names: Names = None, tensor_regex: Names = None, *, trial: Trial | None = None
    ) -> list[str]:
        """Return tensors of a step in one of the collections or matching an expression; all if neither is named.

        Args:
            step: a global one.
            collection_names: a list, or text with commas; None for no name.
            tensor_regex: the same, of expressions.
            trial: None for the rule's base trial.
        """
        trial = trial or self.base_trial
        collections, regexes = as_list(collection_names), as_list(tensor_regex)
        if not collections and not regexes:
            return trial.tensor_names(step=step)
        found: set[str] = set()
        for name in collections:
            found |= set(trial.tensor_names(step=step, collection=name))
        if regexes:
            found |= set(trial.tensor_names(step=step, regex=regexes))
        return sorted(found)

    def of_workers(self, step: int, names: Sequence[str]) -> Iterator[tuple[Tensor, str, str]]:
        """Yield each tensor for each worker that has saved it: tensor, worker, and its name in a finding."""
        for name in self.looks_at(names):
            tensor = self.base_trial.tensor(name)
            workers = tensor.workers(step)
            for worker in workers:
                yield tensor, worker, name if len(workers) == 1 else f"{name} of {worker}"

    def loss_steps(self, name: str, mode: ModeKeys, up_to: int) -> list[int]:
        """Return the global steps of a phase, up to and including one, that have a loss.

        Args:
            name: of the loss.
            mode: phase of the steps.
            up_to: last global step that counts.
        """
        steps = self.base_trial.tensor(name).steps()
        return [step for step in steps if step <= up_to and self.base_trial.mode(step) is mode]

    def training_steps(self, name: str, up_to: int) -> list[int]:
        """Return the global steps that have a tensor, up to and including one, without those of EVAL and PREDICT."""
        steps = self.base_trial.tensor(name).steps()
        return [step for step in steps if step <= up_to and self.base_trial.mode(step) not in _WITHOUT_TRAINING]

    def number(self, name: str, step: int) -> float:
        """Return a loss at a step: the mean, if it has several values."""
        return float(self.base_trial.tensor(name).reduction_value(step, "mean"))

    def finding(self, step: int, text: str, tensor: str = "", **details: Any) -> Finding:
        """Return a finding.

        Args:
            step: a global one; the text begins with it.
            text: one sentence, with numbers.
            tensor: its name; empty if the finding is of no single tensor.
            details: appended to the text if it does not have them.
        """
        return Finding(text=f"step {step}: {text}", step=step, tensor=tensor, details=details)


def as_list(value: Names) -> list[str]:
    """Read a list, or text with commas."""
    words = value.split(",") if isinstance(value, str) else list(value or ())
    return [word.strip() for word in words if word.strip() and word.strip() != "None"]


def as_number(name: str, value: Any, *, least: float | None = None) -> float:
    """Read a number of a rule's parameters.

    Args:
        name: of the parameter, for the error.
        value: a number, or text of one.
        least: smallest value allowed; None for no bound.
    Raises: ConfigurationError.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} is {value!r}; expected a number") from None
    if least is not None and not number >= least:
        raise ConfigurationError(f"{name} is {value!r}; expected {least:g} or more")
    return number


def as_whole(name: str, value: Any, *, least: int = 0) -> int:
    """Read a whole number of a rule's parameters.

    Args: as `as_number`.
    Raises: ConfigurationError.
    """
    number = as_number(name, value, least=least)
    if number != int(number):
        raise ConfigurationError(f"{name} is {value!r}; expected a whole number")
    return int(number)


def as_yes(name: str, value: Any) -> bool:
    """Read a yes or no. Raises: ConfigurationError."""
    return as_bool(name, value)
