"""Reduction and broadcast of tensors over the group, eagerly and inside `tf.function`.

A list is one operation, whatever its length. All ranks call the same function with the same number of tensors of the
same shapes and types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from clary.train._native.interface import ReduceOp
from clary.train.collective.adapters.tensorflow.ordered import run_ordered
from clary.train.collective.adapters.tensorflow.process import Process


def reduce_tensors(process: Process, tensors: Sequence[Any], op: ReduceOp) -> list[Any]:
    """Reduce each tensor over all ranks and return the results.

    Args:
        tensors: dense tensors, or tf.IndexedSlices, which are made dense.
        op: AVG only for floating types.
    Raises: TypeError, before sending, for a type on which `op` is not defined; CollectiveError.
    """
    dense = [tf.convert_to_tensor(tensor) for tensor in tensors]
    for tensor in dense:
        if op is ReduceOp.AVG and not tensor.dtype.is_floating:
            raise TypeError(
                f"the average of {tensor.dtype.name} is not of that type: cast it to a floating type, or ask for a sum"
            )
    lists = process.lists
    if lists.world.size == 1 or not dense:
        return dense

    def exchange(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return lists.reduce(arrays, op)

    return run_ordered(exchange, dense, dense)


def broadcast_tensors(process: Process, tensors: Sequence[Any], root: int) -> list[Any]:
    """Return the root's tensors on all ranks.

    Args:
        tensors: of any numeric type.
        root: rank that sends.
    Raises: ValueError for an invalid root; CollectiveError.
    """
    lists = process.lists
    size = lists.world.size
    if not 0 <= root < size:
        raise ValueError(f"root_rank {root} is no rank: ranks are 0 to {size - 1}")
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if size == 1 or not values:
        return values

    def exchange(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return lists.broadcast(arrays, root)

    return run_ordered(exchange, values, values)


def broadcast_variables(process: Process, variables: Sequence[Any], root: int) -> Any:
    """Assign the root's values to the variables of all ranks.

    Args:
        variables: variables of TensorFlow or Keras, in the same order on all ranks.
        root: rank whose values are assigned.
    Returns: in a graph of TensorFlow 1 the operation that makes all assignments; otherwise None.
    Raises: as `broadcast_tensors`.
    """
    values = broadcast_tensors(process, variables, root)
    assigned = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    if tf.compat.v1.executing_eagerly_outside_functions():
        return None
    return tf.group(*[one.op if hasattr(one, "op") else one for one in assigned])
