"""Rule for losses that do not decrease."""

from __future__ import annotations

import math
from typing import Any

from clary.train.debugger.errors import ConfigurationError
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, Names, as_list, as_number, as_whole, as_yes


class LossNotDecreasing(BuiltInRule):
    """A loss no longer decreases.

    Formula: d < diff_percent, where d = 100 * (before - now) / |before|, `now` is the mean of the losses saved since
        the previous comparison and `before` the mean of the losses in the interval before that; comparisons are
        num_steps or more apart. A rise of up to increase_threshold_percent is no finding if the smallest loss since the
        previous comparison is the smallest of both intervals
    Args:
        collection_names: collections of losses to evaluate besides the collection `losses`.
        tensor_regex: expressions for further losses.
        use_losses_collection: whether to evaluate the collection `losses`.
        num_steps: minimum number of steps between two comparisons.
        diff_percent: smallest decrease that causes no finding, in percent.
        increase_threshold_percent: largest rise between two comparisons that counts as noise, in percent.
        mode: TRAIN, EVAL or PREDICT for steps of that phase only; GLOBAL for all steps, each compared within its phase.
    """

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Names = None,
        tensor_regex: Names = None,
        use_losses_collection: Any = True,
        num_steps: Any = 10,
        diff_percent: Any = 0.1,
        increase_threshold_percent: Any = 5,
        mode: str = "GLOBAL",
    ) -> None:
        super().__init__(base_trial)
        uses_losses = as_yes("use_losses_collection", use_losses_collection)
        self.collection_names = [*as_list(collection_names), *(["losses"] if uses_losses else [])]
        self.tensor_regex = as_list(tensor_regex)
        if not self.collection_names and not self.tensor_regex:
            raise ConfigurationError(
                "LossNotDecreasing: set collection_names or tensor_regex, or use_losses_collection"
            )
        self.num_steps = as_whole("num_steps", num_steps, least=1)
        self.diff_percent = as_number("diff_percent", diff_percent)
        self.increase_threshold_percent = as_number("increase_threshold_percent", increase_threshold_percent, least=0)
        if str(mode).upper() not in ModeKeys.__members__:
            raise ConfigurationError(f"mode is {mode!r}; expected TRAIN, EVAL, PREDICT or GLOBAL")
        self.mode = ModeKeys[str(mode).upper()]

    def invoke_at_step(self, step: int) -> Finding | None:
        """Evaluate a global step; return a finding or None."""
        mode = self.base_trial.mode(step)
        if self.mode not in (ModeKeys.GLOBAL, mode):
            return None
        for name in self.looks_at(self.chosen(step, self.collection_names, self.tensor_regex)):
            steps = self.loss_steps(name, mode, step)
            now, before = _windows(steps, self.num_steps)
            if now and (found := self._compare(name, now, before)):
                return self.finding(step, found, name)
        return None

    def _compare(self, name: str, now: list[int], before: list[int]) -> str:
        losses = [self.number(name, one) for one in now]
        earlier = [self.number(name, one) for one in before]
        mean, mean_before = sum(losses) / len(losses), sum(earlier) / len(earlier)
        decrease = 100 * (mean_before - mean) / max(abs(mean_before), math.ulp(0.0))
        is_noise = -self.increase_threshold_percent <= decrease < 0 and min(losses) < min(earlier)
        if decrease >= self.diff_percent or is_noise:
            return ""
        return (
            f"{name} was {mean_before:.6g} in steps {before[0]} to {before[-1]} and is {mean:.6g} in steps {now[0]} to "
            f"{now[-1]}: {decrease:.3g} % less, expected {self.diff_percent:g} %"
        )


def _windows(steps: list[int], apart: int) -> tuple[list[int], list[int]]:
    """Return the steps since the previous comparison and the steps of the window before; empty if not due."""
    looks: list[int] = []
    for step in steps:
        if not looks or step - looks[-1] >= apart:
            looks.append(step)
    if len(looks) < 2 or looks[-1] != steps[-1]:
        return [], []
    oldest = looks[-3] if len(looks) > 2 else -1
    return [one for one in steps if one > looks[-2]], [one for one in steps if oldest < one <= looks[-2]]
