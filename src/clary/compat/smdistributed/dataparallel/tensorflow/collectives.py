"""Collectives on tensors and variables over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from clary.train.collective.adapters.tensorflow import exchange
from clary.train.collective.adapters.tensorflow.compression import Compression
from clary.train.collective.adapters.tensorflow.tape import reduce_gradients

from .ranks import ReduceOp, process


def allreduce(
    tensor: Any = None,
    param_index: int = 0,
    num_params: int = 1,
    compression: Any = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
    *,
    grad: Any = None,
) -> Any:
    """Return a gradient reduced over all ranks.

    Args:
        tensor: of any shape, equal on all ranks.
        param_index: index of the gradient among all gradients, from 0.
        num_params: number of gradients. Index and number do not change the result; the tape exchanges all gradients at
            once.
        compression: Compression.none or Compression.fp16.
        op: a `ReduceOp`; AVERAGE only for floating-point types.
        grad: the name that scripts for the first versions use for `tensor`.
    Raises: TypeError without a tensor, with both names, or for AVERAGE of another type; ValueError for an index outside
    of `num_params`; CollectiveError.
    """
    if (tensor is None) == (grad is None):
        raise TypeError("allreduce takes one tensor: allreduce(tensor, param_index, num_params)")
    tensor = grad if tensor is None else tensor
    if not 0 <= param_index < num_params:
        raise ValueError(f"param_index {param_index} is out of range for {num_params} parameters: count them from 0")
    return reduce_gradients(process, [tensor], op.value, compression)[0]


def oob_allreduce(tensor: Any, compression: Any = Compression.none, op: ReduceOp = ReduceOp.AVERAGE) -> Any:
    """Return the average over all ranks of a tensor other than a gradient, such as a loss.

    Args:
        tensor: of a floating type; of any shape, equal on all ranks.
        compression: Compression.none or Compression.fp16.
        op: AVERAGE.
    Raises: NotImplementedError for another op; TypeError for another type; CollectiveError.
    """
    if op is not ReduceOp.AVERAGE:
        raise NotImplementedError(f"oob_allreduce computes ReduceOp.AVERAGE only, got {op}: use allreduce")
    return reduce_gradients(process, [tensor], op.value, compression)[0]


def broadcast(tensor: Any, root_rank: int) -> Any:
    """Return the tensor of rank `root_rank`; its shape and type are equal on all ranks.

    Raises: ValueError for a root that is not a rank; CollectiveError.
    """
    return exchange.broadcast_tensors(process, [tensor], root_rank)[0]


def broadcast_variables(variables: Sequence[Any], root_rank: int) -> Any:
    """Assign the values of rank `root_rank` to the variables of all ranks, by one operation.

    Returns: the operation to run in a graph of TensorFlow 1; otherwise None, after the operation has run.
    Raises: as `broadcast`.
    """
    return exchange.broadcast_variables(process, list(variables), root_rank)


def broadcast_global_variables(root_rank: int) -> Any:
    """Assign rank `root_rank`'s values to all global variables of the default graph of TensorFlow 1.

    Returns: the operation to run.
    Raises: RuntimeError in eager mode, without a graph; ValueError for a root that is not a rank.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables needs a graph of TensorFlow 1: pass the model's variables to "
            "broadcast_variables instead"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def overlap(tensor: Any) -> Any:
    """Return `tensor`, of any shape, unchanged: Clary compiles no model with XLA, so no tensor has to be marked."""
    return tf.identity(tensor)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Assigns rank `root_rank`'s values to all global variables when a session of TensorFlow 1 begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._device = device
        self._operation: Any = None

    def begin(self) -> None:
        """Add the operation to the graph."""
        with tf.device(self._device):
            self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the operation; raises errors of TensorFlow with the text of CollectiveError."""
        session.run(self._operation)
