"""Sums gradients of several backward passes before they are reduced (`backward_passes_per_step`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from clary.train.collective.adapters.tensorflow.tape import Reduce


class LocalGradientAggregationHelper:
    """Sums gradients, and calls `reduce` with the sums after every `passes` passes.

    Args:
        passes: backward passes of one step.
        averages: whether reduced sums are divided by the number of passes.
    """

    def __init__(self, reduce: Reduce, passes: int, averages: bool, *, sparse_as_dense: bool) -> None:
        self._reduce = reduce
        self._passes = passes
        self._averages = averages
        self._sparse_as_dense = sparse_as_dense
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int32, name="aggregation_counter")
        self._sums: dict[int, Any] = {}

    def __call__(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Add gradients to the sums; return the reduced sums if the step is due, else this rank's sums.

        Raises: ValueError for sparse gradients without `sparse_as_dense`.
        """
        if not self._sparse_as_dense and any(isinstance(one, tf.IndexedSlices) for one in gradients):
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        places = [place for place, one in enumerate(gradients) if one is not None]
        dense = {place: tf.convert_to_tensor(gradients[place]) for place in places}
        for place in places:
            self._make_sum(place, dense[place], variables[place])
        added = [self._sums[place].assign_add(dense[place]) for place in places]
        with tf.control_dependencies(_operations(added)):
            counted = self.counter.assign_add(1)
        with tf.control_dependencies(_operations([counted])):
            is_last = tf.equal(self.counter.read_value(), self._passes)
            sums = tf.cond(
                is_last,
                lambda: self._reduce_and_clear(places, variables),
                lambda: [self._sums[place].read_value() for place in places],
            )
        results: list[Any] = [None] * len(gradients)
        for place, total in zip(places, sums, strict=True):
            results[place] = total
        return results

    def is_due(self) -> Any:
        """Return, as a scalar of bool, whether the last returned sums are reduced over all ranks."""
        return tf.equal(self.counter.read_value(), 0)

    def _make_sum(self, place: int, gradient: Any, variable: Any) -> None:
        if place not in self._sums:
            with tf.init_scope():
                zeros = tf.zeros(variable.shape, gradient.dtype)
                self._sums[place] = tf.Variable(zeros, trainable=False, name=f"aggregated_gradient_{place}")

    def _reduce_and_clear(self, places: list[int], variables: Sequence[Any]) -> list[Any]:
        totals = [self._sums[place].read_value() for place in places]
        reduced = self._reduce(totals, [variables[place] for place in places])
        if self._averages:
            reduced = [one / tf.cast(self._passes, one.dtype) for one in reduced]
        with tf.control_dependencies(reduced):
            cleared = [self._sums[place].assign(tf.zeros_like(self._sums[place])) for place in places]
            cleared.append(self.counter.assign(0))
        with tf.control_dependencies(_operations(cleared)):
            return [tf.identity(one) for one in reduced]


def _operations(assigned: Sequence[Any]) -> list[Any]:
    """Return the operations that a graph can wait for; [] in eager mode."""
    return [] if tf.executing_eagerly() else [one.op if hasattr(one, "op") else one for one in assigned]
