"""Collectives on plain values; results are NumPy arrays in graphs of TensorFlow 1, else tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.tensorflow import functions, mpi_ops, reductions
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Average


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Return a value reduced over all ranks.

    Args:
        value: a number, list, array or tensor, of one shape on all ranks.
        name: name of the TensorFlow constant that holds the value.
        average: argument of Horovod before 0.19; use `op`.
        prescale_factor, postscale_factor: factors of each rank's value before the reduction, and of the result.
        op: Average (if None), Sum, Adasum, Min, Max or Product.
        compression: compressor of the value for sending.
    """
    return _evaluated(
        reductions.allreduce(
            tf.constant(value, name=name),
            average=average,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the values of all ranks, concatenated along their first axis."""
    return _evaluated(mpi_ops.allgather(tf.constant(value, name=name)))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of rank `root_rank`; `name` names the TensorFlow constant that holds this rank's value."""
    return _evaluated(mpi_ops.broadcast(tf.constant(value, name=name), root_rank))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Return this rank's rows of a value that is reduced by `op` over all ranks; `name` is as for `allreduce`."""
    return _evaluated(reductions.reducescatter(tf.constant(value, name=name), op=op))


def broadcast_global_variables(root_rank: int) -> Any:
    """Assign one rank's values to all global variables of a graph of TensorFlow 1, at once.

    Raises: RuntimeError in eager mode.
    """
    return _evaluated(functions.broadcast_global_variables(root_rank))


def _evaluated(result: Any) -> Any:
    if tf.executing_eagerly():
        return result
    return tf.compat.v1.keras.backend.get_session().run(result)
