"""Values that are NaN or infinite."""

from __future__ import annotations

import math
from typing import Any

from clary.train.debugger.errors import TensorUnavailableForStep
from clary.train.debugger.reading.saved_tensor import Tensor
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, Names, as_yes


class ExplodingTensor(BuiltInRule):
    """A tensor has values that are NaN or infinite.

    Formula: any(isnan(x)) or any(isinf(x)), for some chosen tensor x; if only reductions of x were saved, for any
        reduction
    Args:
        collection_names: collections of tensors to check, in addition to those of tensor_regex; all tensors if neither
            is given.
        tensor_regex: regular expressions of names of tensors to check.
        only_nan: report NaN alone, not infinite values.
    """

    def __init__(
        self, base_trial: Trial, collection_names: Names = None, tensor_regex: Names = None, only_nan: Any = False
    ) -> None:
        super().__init__(base_trial)
        self.collection_names, self.tensor_regex = collection_names, tensor_regex
        self.only_nan = as_yes("only_nan", only_nan)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        names = self.chosen(step, self.collection_names, self.tensor_regex)
        for tensor, worker, called in self.of_workers(step, names):
            if found := self._found(tensor, worker, step):
                return self.finding(step, f"{called} has values that are {found}", tensor.name)
        return None

    def _found(self, tensor: Tensor, worker: str, step: int) -> str:
        import numpy as np

        try:
            value = tensor.value(step, worker=worker)
        except TensorUnavailableForStep:
            numbers = [float(one) for one in tensor.reduction_values(step, worker=worker).values()]
            has_nan, has_infinite = any(map(math.isnan, numbers)), any(map(math.isinf, numbers))
        else:
            if value.dtype.kind not in "fc":
                return ""
            has_nan, has_infinite = bool(np.isnan(value).any()), bool(np.isinf(value).any())
        if has_nan:
            return "NaN"
        return "infinite" if has_infinite and not self.only_nan else ""
