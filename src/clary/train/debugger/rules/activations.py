"""Rules for activations that no longer have an effect."""

from __future__ import annotations

import re
from typing import Any

from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, Names, as_list, as_number


class DeadRelu(BuiltInRule):
    """Most of a layer's ReLUs are hardly ever active.

    Formula: 100 * mean(dead) > threshold_layer, where a ReLU is dead if 100 * mean(y > 0) < threshold_inactivity for
        its outputs y over the batch, the first dimension
    Args:
        tensor_regex: outputs of ReLUs.
        threshold_inactivity: least activity of a ReLU that is not dead, in percent of the batch.
        threshold_layer: largest share of dead ReLUs in a layer that causes no finding, in percent.
    """

    def __init__(
        self,
        base_trial: Trial,
        tensor_regex: Names = ".*relu_output",
        threshold_inactivity: Any = 1.0,
        threshold_layer: Any = 50.0,
    ) -> None:
        super().__init__(base_trial)
        self.tensor_regex = as_list(tensor_regex)
        self.threshold_inactivity = as_number("threshold_inactivity", threshold_inactivity, least=0)
        self.threshold_layer = as_number("threshold_layer", threshold_layer, least=0)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Evaluate a global step; return a finding or None."""
        names = self.base_trial.tensor_names(step=step, regex=self.tensor_regex)
        for tensor, worker, called in self.of_workers(step, names):
            share = inactive_percent(tensor.value(step, worker=worker) > 0, self.threshold_inactivity)
            if share > self.threshold_layer:
                return self.finding(
                    step, f"{share:.3g} % of {called} are dead, the limit is {self.threshold_layer:g} %", tensor.name
                )
        return None


class SaturatedActivation(BuiltInRule):
    """Most of a layer's tanh or sigmoid functions have inputs at which their slope is almost zero.

    Formula: 100 * mean(saturated) > threshold_layer, where a function is saturated if 100 * mean(min < x < max) <
        threshold_inactivity for its inputs x over the batch, the first dimension
    Args:
        collection_names: collections whose tensors are evaluated in addition to those of `tensor_regex`.
        tensor_regex: inputs of functions; a tensor's name shows which of the two functions has the input.
        threshold_tanh_min: the smallest input at which tanh still has a slope.
        threshold_tanh_max: the largest input at which tanh still has a slope.
        threshold_sigmoid_min: the smallest input at which sigmoid still has a slope.
        threshold_sigmoid_max: the largest input at which sigmoid still has a slope.
        threshold_inactivity: smallest share of the batch, in percent, for which an unsaturated function has a slope.
        threshold_layer: largest share of saturated functions in a layer that causes no finding, in percent.
    """

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Names = None,
        tensor_regex: Names = ".*tanh_input|.*sigmoid_input",
        threshold_tanh_min: Any = -9.4999,
        threshold_tanh_max: Any = 9.4999,
        threshold_sigmoid_min: Any = -23,
        threshold_sigmoid_max: Any = 16.99999,
        threshold_inactivity: Any = 1.0,
        threshold_layer: Any = 50.0,
    ) -> None:
        super().__init__(base_trial)
        self.collection_names, self.tensor_regex = as_list(collection_names), as_list(tensor_regex)
        self.slopes = {
            "tanh": (
                as_number("threshold_tanh_min", threshold_tanh_min),
                as_number("threshold_tanh_max", threshold_tanh_max),
            ),
            "sigmoid": (
                as_number("threshold_sigmoid_min", threshold_sigmoid_min),
                as_number("threshold_sigmoid_max", threshold_sigmoid_max),
            ),
        }
        self.threshold_inactivity = as_number("threshold_inactivity", threshold_inactivity, least=0)
        self.threshold_layer = as_number("threshold_layer", threshold_layer, least=0)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Evaluate a global step; return a finding or None."""
        names = self.chosen(step, self.collection_names, self.tensor_regex)
        for tensor, worker, called in self.of_workers(step, names):
            kind = re.search("tanh|sigmoid", f"{tensor.name} {self.base_trial.alias(tensor.name)}".lower())
            if kind is None:
                continue
            low, high = self.slopes[kind[0]]
            value = tensor.value(step, worker=worker)
            share = inactive_percent((value > low) & (value < high), self.threshold_inactivity)
            if share > self.threshold_layer:
                return self.finding(
                    step,
                    f"{share:.3g} % of {called} are saturated, the limit is {self.threshold_layer:g} %",
                    tensor.name,
                )
        return None


def inactive_percent(active: Any, least_percent: float) -> float:
    """Return the share of units, in percent, that are active in less than a given percentage of a batch."""
    if not active.size:
        return 0.0
    per_unit = active.mean(axis=0) if active.ndim else active
    return float(100 * (100 * per_unit < least_percent).mean())
