"""Gradients too small to learn from."""

from __future__ import annotations

from typing import Any

from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, as_number


class VanishingGradient(BuiltInRule):
    """Gradients have become too small to learn from.

    Formula: mean(|g|) < threshold, for some tensor g of the collection gradients
    Args:
        threshold: least mean that is accepted.
    """

    def __init__(self, base_trial: Trial, threshold: Any = 0.0000001) -> None:
        super().__init__(base_trial)
        self.threshold = as_number("threshold", threshold, least=0)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        for tensor, worker, called in self.of_workers(step, self.chosen(step, "gradients")):
            mean = tensor.reduction_value(step, "mean", worker=worker, abs=True)
            if mean < self.threshold:
                return self.finding(
                    step,
                    f"mean of |{called}| is {mean:.3g}, below {self.threshold:g}",
                    tensor.name,
                    mean=float(mean),
                )
        return None
