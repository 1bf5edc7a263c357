"""Rules on suspicious values of tensors: all zero, out of range, always the same."""

from __future__ import annotations

import itertools
from typing import Any

from clary.train.debugger.errors import InsufficientInformationForRuleInvocation
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, Names, as_number, as_whole, as_yes


class AllZero(BuiltInRule):
    """All or most values of a tensor are 0.

    Formula: 100 * mean(x == 0) >= threshold, for some chosen tensor x
    Args:
        collection_names: collections of tensors to check, in addition to those of tensor_regex; all tensors if neither
            is given.
        tensor_regex: regular expressions of names of tensors to check.
        threshold: the share of zeros that is a finding, in percent.
    """

    def __init__(
        self, base_trial: Trial, collection_names: Names = None, tensor_regex: Names = None, threshold: Any = 100
    ) -> None:
        super().__init__(base_trial)
        self.collection_names, self.tensor_regex = collection_names, tensor_regex
        self.threshold = as_number("threshold", threshold, least=0)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        names = self.chosen(step, self.collection_names, self.tensor_regex)
        for tensor, worker, called in self.of_workers(step, names):
            value = tensor.value(step, worker=worker)
            if value.size and (share := 100 * float((value == 0).mean())) >= self.threshold:
                text = f"{share:.3g} % of {called} are 0, the limit is {self.threshold:g} %"
                return self.finding(step, text, tensor.name)
        return None


class TensorVariance(BuiltInRule):
    """The values of a tensor are spread too much or too little.

    Formula: var(x) > max_threshold or var(x) < min_threshold, for some chosen tensor x
    Args:
        collection_names: collections of tensors to check, in addition to those of tensor_regex; all tensors if neither
            is given.
        tensor_regex: regular expressions of names of tensors to check.
        max_threshold: largest variance that is accepted; at least one of the two thresholds must be given.
        min_threshold: least variance that is accepted.
    """

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Names = None,
        tensor_regex: Names = None,
        max_threshold: Any = None,
        min_threshold: Any = None,
    ) -> None:
        super().__init__(base_trial)
        self.collection_names, self.tensor_regex = collection_names, tensor_regex
        if max_threshold is None and min_threshold is None:
            raise InsufficientInformationForRuleInvocation("TensorVariance", "give max_threshold or min_threshold")
        self.most = float("inf") if max_threshold is None else as_number("max_threshold", max_threshold)
        self.least = float("-inf") if min_threshold is None else as_number("min_threshold", min_threshold)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        names = self.chosen(step, self.collection_names, self.tensor_regex)
        for tensor, worker, called in self.of_workers(step, names):
            variance = float(tensor.reduction_value(step, "variance", worker=worker))
            if variance > self.most or variance < self.least:
                text = f"{called} has a variance of {variance:.3g}; expected {self.least:g} to {self.most:g}"
                return self.finding(step, text, tensor.name)
        return None


class UnchangedTensor(BuiltInRule):
    """A tensor does not change from step to step.

    Formula: |x - y| <= atol + rtol * |y| for all values, between each two neighbours x and y of the last num_steps
        training steps that saved the tensor, for some chosen tensor
    Args:
        collection_names: collections of tensors to check, in addition to those of tensor_regex; all tensors if neither
            is given.
        tensor_regex: regular expressions of names of tensors to check.
        num_steps: number of saved steps that are compared, including the current one.
        rtol: largest difference that counts as equal, relative to a value.
        atol: largest absolute difference that counts as equal.
        equal_nan: NaN counts as equal to NaN.
    """

    def __init__(
        self,
        base_trial: Trial,
        collection_names: Names = None,
        tensor_regex: Names = None,
        num_steps: Any = 3,
        rtol: Any = 1e-05,
        atol: Any = 1e-08,
        equal_nan: Any = False,
    ) -> None:
        super().__init__(base_trial)
        self.collection_names, self.tensor_regex = collection_names, tensor_regex
        self.num_steps = as_whole("num_steps", num_steps, least=2)
        self.rtol, self.atol = as_number("rtol", rtol, least=0), as_number("atol", atol, least=0)
        self.equal_nan = as_yes("equal_nan", equal_nan)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        import numpy as np

        for name in self.looks_at(self.chosen(step, self.collection_names, self.tensor_regex)):
            tensor = self.base_trial.tensor(name)
            steps = self.training_steps(name, step)[: -self.num_steps - 1 : -1]
            if len(steps) < self.num_steps or steps[0] != step:
                continue
            values = [tensor.value(one) for one in steps]
            if all(
                newer.shape == older.shape
                and np.allclose(newer, older, rtol=self.rtol, atol=self.atol, equal_nan=self.equal_nan)
                for newer, older in itertools.pairwise(values)
            ):
                return self.finding(step, f"{name} has not changed in {len(steps)} saved steps since {steps[-1]}", name)
        return None
