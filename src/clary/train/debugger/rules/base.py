"""Helpers of built-in rules: parsing of text parameters, choice of tensors, losses as numbers."""

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
        """Wait for a global step and evaluate it; raises as `Rule.invoke`."""
        self._has_looked = False
        super().invoke(step)

    def has_looked(self) -> bool:
        """Whether the last invoked step had the rule's tensors."""
        return self._has_looked

    def looks_at(self, found: Sequence[T]) -> Sequence[T]:
        """Record and return the tensors of a step that a rule evaluates; a step without tensors does not count."""
        self._has_looked = self._has_looked or bool(found)
        return found

    def chosen(
        self, step: int, collection_names: Names = None, tensor_regex: Names = None, *, trial: Trial | None = None
    ) -> list[str]:
        """Return tensors of a step that are in a collection or match an expression; all if neither is given.

        Args:
            step: a global step.
            collection_names: a list, or text with commas; None for no collections.
            tensor_regex: expressions in the same form.
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
        """Yield (tensor, worker, name in a finding) for each tensor and each worker that has saved it."""
        for name in self.looks_at(names):
            tensor = self.base_trial.tensor(name)
            workers = tensor.workers(step)
            for worker in workers:
                yield tensor, worker, name if len(workers) == 1 else f"{name} of {worker}"

    def loss_steps(self, name: str, mode: ModeKeys, up_to: int) -> list[int]:
        """Return the global steps of a phase, up to and including `up_to`, that have a loss.

        Args:
            name: name of the loss.
            mode: phase of the steps.
            up_to: last global step that counts.
        """
        steps = self.base_trial.tensor(name).steps()
        return [step for step in steps if step <= up_to and self.base_trial.mode(step) is mode]

    def training_steps(self, name: str, up_to: int) -> list[int]:
        """Return the global steps up to a limit that have a tensor, except steps of EVAL and PREDICT."""
        steps = self.base_trial.tensor(name).steps()
        return [step for step in steps if step <= up_to and self.base_trial.mode(step) not in _WITHOUT_TRAINING]

    def number(self, name: str, step: int) -> float:
        """Return a loss at a step; the mean, if it has several values."""
        return float(self.base_trial.tensor(name).reduction_value(step, "mean"))

    def finding(self, step: int, text: str, tensor: str = "", **details: Any) -> Finding:
        """Return a finding.

        Args:
            step: a global step, with which the text begins.
            text: one sentence, with numbers.
            tensor: name of the tensor; empty if the finding concerns several.
            details: values that `evaluation` appends to the text unless it has them.
        """
        return Finding(text=f"step {step}: {text}", step=step, tensor=tensor, details=details)


def as_list(value: Names) -> list[str]:
    """Parse a list, or text with commas."""
    words = value.split(",") if isinstance(value, str) else list(value or ())
    return [word.strip() for word in words if word.strip() and word.strip() != "None"]


def as_number(name: str, value: Any, *, least: float | None = None) -> float:
    """Parse a number of a rule's parameters.

    Args:
        name: name of the parameter, for the error.
        value: a number, or its text.
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
    """Parse a whole number of a rule's parameters.

    Args: as `as_number`.
    Raises: ConfigurationError.
    """
    number = as_number(name, value, least=least)
    if number != int(number):
        raise ConfigurationError(f"{name} is {value!r}; expected a whole number")
    return int(number)


def as_yes(name: str, value: Any) -> bool:
    """Parse a yes or no. Raises: ConfigurationError."""
    return as_bool(name, value)
