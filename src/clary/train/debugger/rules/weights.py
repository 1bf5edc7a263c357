"""Rules on weights with bad initial values, and on weights that change too much or not at all."""

from __future__ import annotations

from typing import Any

from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, Names, as_list, as_number, as_whole
from clary.train.debugger.rules.overfitting import steps_without_improvement

_LOW, _HIGH = 5, 95  # percentiles of gradients


class PoorWeightInitialization(BuiltInRule):
    """Weights began too large, too small or all equal, as the first steps show.

    Formula: within the first saved steps, the loss has not gone down for `patience` saved steps, and one of two
        conditions holds: max(var(a)) / min(var(a)) > threshold over the inputs a of activations, or p95(g) - p5(g) <
        distribution_range for some tensor g of the collection gradients
    Args:
        activation_inputs_regex: inputs of activations.
        threshold: largest ratio of variances that is accepted.
        distribution_range: least range of gradients that is accepted.
        patience: number of saved steps without a smaller loss after which a finding is possible.
        steps: number of first saved steps to check.
    """

    def __init__(
        self,
        base_trial: Trial,
        activation_inputs_regex: Names = ".*relu_input",
        threshold: Any = 10.0,
        distribution_range: Any = 0.001,
        patience: Any = 5,
        steps: Any = 10,
    ) -> None:
        super().__init__(base_trial)
        self.activation_inputs_regex = as_list(activation_inputs_regex)
        self.threshold = as_number("threshold", threshold, least=0)
        self.distribution_range = as_number("distribution_range", distribution_range, least=0)
        self.patience = as_whole("patience", patience, least=1)
        self.steps = as_whole("steps", steps, least=1)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        if step not in self.base_trial.steps()[: self.steps]:
            return None
        stuck = [name for name in self.looks_at(self.chosen(step, "losses")) if self._is_stuck(name, step)]
        if not stuck:
            return None
        reason = self._variances(step) or self._ranges(step)
        return self.finding(step, f"{stuck[0]} does not go down, and {reason}", stuck[0]) if reason else None

    def _is_stuck(self, name: str, step: int) -> bool:
        losses = [self.number(name, one) for one in self.loss_steps(name, self.base_trial.mode(step), step)]
        return steps_without_improvement(losses, 0.0) >= self.patience

    def _variances(self, step: int) -> str:
        names = self.base_trial.tensor_names(step=step, regex=self.activation_inputs_regex)
        variances = {name: float(self.base_trial.tensor(name).reduction_value(step, "variance")) for name in names}
        if len(variances) < 2:
            return ""
        largest, smallest = max(variances, key=variances.__getitem__), min(variances, key=variances.__getitem__)
        if variances[largest] <= self.threshold * variances[smallest]:
            return ""
        return (
            f"{largest} has a variance of {variances[largest]:.3g}, {smallest} of {variances[smallest]:.3g}: more than "
            f"{self.threshold:g} times"
        )

    def _ranges(self, step: int) -> str:
        import numpy as np

        for name in self.chosen(step, "gradients"):
            value = self.base_trial.tensor(name).value(step)
            if not value.size:
                continue
            low, high = np.percentile(value, (_LOW, _HIGH))
            if high - low < self.distribution_range:
                return f"nine tenths of {name} are within {high - low:.3g}, below {self.distribution_range:g}"
        return ""


class WeightUpdateRatio(BuiltInRule):
    """Weights change too much from step to step, or not at all.

    Formula: r > large_threshold or r < small_threshold, where r = mean(|w - p|) / (mean(|p|) + epsilon) for some tensor
        w of the collection weights, and p is the newest value of the same tensor that is at least num_steps steps older
    Args:
        num_steps: least number of steps between the two compared values; 1 if not given.
        large_threshold: largest ratio that is accepted.
        small_threshold: least ratio that is accepted.
        epsilon: prevents a division by 0 if all weights are 0.
    """

    def __init__(
        self,
        base_trial: Trial,
        num_steps: Any = None,
        large_threshold: Any = 10.0,
        small_threshold: Any = 0.00000001,
        epsilon: Any = 0.000000001,
    ) -> None:
        super().__init__(base_trial)
        self.num_steps = 1 if num_steps in (None, "None") else as_whole("num_steps", num_steps, least=1)
        self.large_threshold = as_number("large_threshold", large_threshold, least=0)
        self.small_threshold = as_number("small_threshold", small_threshold, least=0)
        self.epsilon = as_number("epsilon", epsilon, least=0)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        import numpy as np

        for name in self.looks_at(self.chosen(step, "weights")):
            tensor = self.base_trial.tensor(name)
            steps = self.training_steps(name, step)
            before = [one for one in steps if one <= step - self.num_steps]
            if not before or steps[-1] != step:
                continue
            now, earlier = tensor.value(step).astype("f8"), tensor.value(before[-1]).astype("f8")
            if now.shape != earlier.shape or not now.size:
                continue
            ratio = float(np.abs(now - earlier).mean() / (np.abs(earlier).mean() + self.epsilon))
            if ratio > self.large_threshold or ratio < self.small_threshold:
                return self.finding(
                    step,
                    f"{name} has changed by {ratio:.3g} of itself since step {before[-1]}; expected "
                    f"{self.small_threshold:g} to {self.large_threshold:g}",
                    name,
                    ratio=ratio,
                )
        return None
