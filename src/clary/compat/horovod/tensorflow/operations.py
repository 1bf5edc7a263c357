"""Operations on tensors, through which gradients flow, eagerly and inside graphs.

Gradients are as in Horovod: for an all-reduce the all-reduce of the gradients, for a gather and a broadcast the
average over all ranks, for a reduce-scatter the gather. All operations run in one order on all ranks, see
`adapters.tensorflow.ordered`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from horovod.common.arrays import Call, Scaling
from horovod.tensorflow import arrays as exchange

from clary.train.collective.adapters.tensorflow.ordered import run_ordered
from clary.train.horovod import world
from clary.train.horovod.errors import HorovodInternalError
from clary.train.horovod.requests import Reduction

_AVERAGE = Scaling(Reduction.AVERAGE)


class OperationFailed(HorovodInternalError, tf.errors.FailedPreconditionError):
    """An operation failed. Programs can catch it as either base class."""

    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class WrongArgument(ValueError, tf.errors.InvalidArgumentError):
    """A tensor has an unsuitable type or shape; no data was sent. Programs can catch it as either base class."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


def all_reduce(tensors: Sequence[Any], call: Call, scaling: Scaling) -> list[Any]:
    """Return each tensor reduced over the ranks.

    Args:
        tensors: of any shapes, equal on all ranks.
    """

    def reduce(*values: Any) -> Any:
        results = _run(lambda arrays: exchange.all_reduce(arrays, call, scaling), values, values)
        return results, lambda *upstream: all_reduce(_typed(upstream, values), call.nameless, scaling)

    return _differentiable(reduce, tensors)


def all_gather(tensors: Sequence[Any], call: Call) -> list[Any]:
    """Return each tensor, possibly a scalar, concatenated over all ranks along the first axis."""

    def gather(*values: Any) -> Any:
        like = [
            tf.TensorSpec([None, *value.shape[1:]] if value.shape.rank is not None else None, value.dtype)
            for value in values
        ]
        results = _run(lambda arrays: exchange.all_gather(arrays, call), values, like)

        def gradient(*upstream: Any) -> Any:
            return [_own_rows(one, value, call) for one, value in zip(_typed(upstream, values), values, strict=True)]

        return results, gradient

    return _differentiable(gather, tensors)


def _own_rows(upstream: Any, value: Any, call: Call) -> Any:
    """Return the average of all ranks' gradients for the rows that this rank sent."""
    single = Call(process_set=call.process_set)
    (averaged,) = all_reduce([upstream], single, _AVERAGE)
    is_scalar = value.shape.rank == 0
    rows = tf.constant([1]) if is_scalar else tf.shape(value)[:1]
    (counts,) = all_gather([rows], single)
    index = world.ranks_of(call.process_set).index(world.rank())
    first = tf.reduce_sum(counts[:index])
    own = averaged[first : first + counts[index]]
    return tf.reshape(own, []) if is_scalar else own


def broadcast(tensors: Sequence[Any], root_rank: int, call: Call) -> list[Any]:
    """Return the tensors of one rank.

    Args:
        tensors: of any shapes, equal on all ranks.
        root_rank: rank among all ranks.
        call: name and process set.
    """

    def send(*values: Any) -> Any:
        results = _run(lambda arrays: exchange.broadcast(arrays, root_rank, call), values, values)

        def gradient(*upstream: Any) -> Any:
            averaged = all_reduce(_typed(upstream, values), call.nameless, _AVERAGE)
            with tf.control_dependencies(averaged):  # else a graph could omit the reduction on one rank
                return averaged if world.rank() == root_rank else [tf.zeros_like(one) for one in averaged]

        return results, gradient

    return _differentiable(send, tensors)


def all_to_all(tensor: Any, splits: Any, call: Call) -> tuple[Any, Any]:
    """Return the rows that all ranks send to this rank, shape [rows, ...], and their counts, shape [ranks].

    Args:
        splits: rows for each rank, shape [ranks]; an empty tensor cuts the first axis equally.
    """

    def scatter(value: Any, counts: Any) -> Any:
        like = [tf.TensorSpec([None, *value.shape[1:]] if value.shape.rank is not None else None, value.dtype)]
        like.append(tf.TensorSpec([None], tf.int32))

        def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
            return list(exchange.all_to_all(arrays[0], arrays[1], call))

        rows, received = _run(run, (value, counts), like)

        def gradient(upstream: Any, _: Any) -> Any:
            returned, _ = all_to_all(tf.cast(upstream, value.dtype), received, call.nameless)
            return returned, None

        return (rows, received), gradient

    rows, received = tf.custom_gradient(scatter)(tf.convert_to_tensor(tensor), splits)
    return rows, received


def reduce_scatter(tensors: Sequence[Any], call: Call, scaling: Scaling) -> list[Any]:
    """Return this rank's rows of each tensor reduced over the ranks.

    Args:
        tensors: tensors, no scalars, of shapes equal on all ranks.
        call: name and process set.
        scaling: the reduction and its factors.
    """

    def reduce(*values: Any) -> Any:
        like = [
            tf.TensorSpec([None, *value.shape[1:]] if value.shape.rank is not None else None, value.dtype)
            for value in values
        ]
        results = _run(lambda arrays: exchange.reduce_scatter(arrays, call, scaling), values, like)

        def gradient(*upstream: Any) -> Any:
            factor = scaling.before * scaling.after
            if scaling.op is Reduction.SUM:
                factor *= len(world.ranks_of(call.process_set))
            scaled = [one * tf.cast(factor, one.dtype) for one in _typed(upstream, values)]
            return all_gather(scaled, call.nameless)

        return results, gradient

    return _differentiable(reduce, tensors)


def _is_recorded() -> bool:
    """Whether a gradient may be needed later; true if this TensorFlow cannot tell."""
    try:
        from tensorflow.python.eager import record
    except ImportError:
        return True
    return bool(getattr(record, "could_possibly_record", lambda: True)())


def _run(function: Callable[[list[np.ndarray]], list[np.ndarray]], values: Sequence[Any], like: Sequence[Any]) -> Any:
    def guarded(arrays: list[np.ndarray]) -> list[np.ndarray]:
        try:
            return function(arrays)
        except HorovodInternalError as error:
            raise OperationFailed(f"HorovodInternalError: {error}") from error
        except ValueError as error:
            raise WrongArgument(str(error)) from error

    return run_ordered(guarded, list(values), like)


def _differentiable(function: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
    """Make a function differentiable; it must return its results and the function for their gradients."""
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if values and tf.executing_eagerly() and not _is_recorded():
        return list(function(*values)[0])  # TensorFlow's wrapper would take 0.33 ms for each call
    return list(tf.custom_gradient(function)(*values)) if values else []


def _typed(upstream: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return gradients in the types of their tensors; TensorFlow's zeros for a missing gradient may differ in type."""
    return [tf.cast(one, value.dtype) for one, value in zip(upstream, values, strict=True)]
