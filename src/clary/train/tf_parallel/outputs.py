"""Results of a step over all its microbatches.

Where: `step` returns them; scripts compute means of losses and gradients, and concatenate predictions.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_common_api.rst`, `StepOutput`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_METHODS = ("variable", "add_n", "accumulate_n")


class StepOutput:
    """The values of one returned tensor of the step's function: one tensor per microbatch, in order."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self._outputs = list(outputs)

    @property
    def outputs(self) -> list[Any]:
        """The tensors, by microbatch."""
        return list(self._outputs)

    def reduce_mean(self) -> Any:
        """Return the mean over the microbatches.

        Raises: TypeError for integers, whose mean may not be an integer.
        """
        total = self.reduce_sum()
        if not (total.dtype.is_floating or total.dtype.is_complex):
            raise TypeError(
                f"the mean of {total.dtype.name} values may not be of that type: cast the tensor in the step, "
                "or use reduce_sum()"
            )
        return total / tf.cast(len(self._outputs), total.dtype)

    def reduce_sum(self) -> Any:
        """Return the sum over the microbatches."""
        return tf.add_n(self.outputs)

    def concat(self) -> Any:
        """Return the tensors concatenated along axis 0."""
        return tf.concat(self.outputs, 0)

    def merge(self) -> Any:
        """Return the tensors concatenated along axis 0, as `concat`."""
        return self.concat()

    def stack(self) -> Any:
        """Return the tensors stacked along a new axis 0."""
        return tf.stack(self.outputs)

    def accumulate(self, method: str = "variable", var: Any = None) -> Any:
        """Return the mean over the microbatches, as `reduce_mean`.

        Args:
            method: variable, add_n or accumulate_n, as in SageMaker's library; all return the same value.
            var: variable to which the mean is assigned, with the method `variable` alone.

        Raises: ValueError for another method.
        """
        if method not in _METHODS:
            raise ValueError(f"accumulate: method is {method!r}; expected one of {', '.join(_METHODS)}")
        mean = self.reduce_mean()
        if var is None or method != "variable":
            return mean
        var.assign(mean)
        return tf.convert_to_tensor(var)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._outputs!r})"


class GradientOutput(StepOutput):
    """A gradient if the key `ddp` is set: all its values are averaged over the replicas of the model.

    Args:
        mean: the mean over microbatches and replicas.
        averaged: function that averages tensors over the replicas; all replicas call it.
    """

    def __init__(self, outputs: Sequence[Any], mean: Any, averaged: Callable[[list[Any]], list[Any]]) -> None:
        super().__init__(outputs)
        self._mean = mean
        self._averaged = averaged

    @property
    def outputs(self) -> list[Any]:
        """The tensors by microbatch, averaged over replicas. All replicas read it."""
        return self._averaged(super().outputs)

    def reduce_mean(self) -> Any:
        """Return the mean over the microbatches of all replicas."""
        return self._mean

    def reduce_sum(self) -> Any:
        """Return the sum over the microbatches, averaged over replicas."""
        return self._mean * tf.cast(len(self._outputs), self._mean.dtype)
