"""Optimizers that apply gradients reduced over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradients import GradientOptions, GradientReducer, check_op, groups_of
from horovod.tensorflow.mpi_ops import Adasum, Average

from clary.train.collective.adapters.tensorflow.optimizer import distribute


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer that reduces its gradients over all ranks.

    Args:
        optimizer: an optimizer of tf.compat.v1.train or of Keras; an optimizer of Keras is changed and returned.
        name: name of the optimizer's operations.
        use_locking: argument of the wrapper of a TensorFlow 1 optimizer.
        backward_passes_per_step: passes whose gradients are added up before they are reduced and applied.
        average_aggregated_gradients: divide the sum of the passes by their number.
        device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups,
            process_set, scale_local_gradients: as for `DistributedGradientTape`.
    Raises: ValueError for options that exclude each other; TypeError for an object that is not an optimizer.
    """
    check_op(op, averages_aggregated=average_aggregated_gradients)
    is_of_tensorflow_1 = isinstance(optimizer, tf.compat.v1.train.Optimizer)
    if op == Adasum and not is_of_tensorflow_1:
        raise ValueError("op == Adasum is not supported yet with Keras")
    if backward_passes_per_step > 1 and is_of_tensorflow_1 and tf.executing_eagerly():
        raise ValueError("backward_passes_per_step > 1 is not yet supported for _LegacyOptimizer with eager execution.")
    options = GradientOptions(
        name=name or f"Distributed{type(optimizer).__name__}",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide=gradient_predivide_factor,
        groups=groups_of(num_groups, groups),
        process_set=process_set,
        scales_local=scale_local_gradients,
    )
    reducer = GradientReducer(options)

    def register_local_var(self: Any, var: Any) -> None:
        """Keep the gradients of a variable local to this rank."""
        reducer.keep_local(var)

    additions = {"register_local_var": register_local_var, "process_set": process_set}
    if backward_passes_per_step == 1:
        return distribute(optimizer, reducer, name=name, use_locking=use_locking, additions=additions)
    helper = LocalGradientAggregationHelper(
        reducer, backward_passes_per_step, average_aggregated_gradients, sparse_as_dense=sparse_as_dense
    )
    additions["_agg_helper"] = helper
    return distribute(optimizer, helper, is_due=helper.is_due, name=name, use_locking=use_locking, additions=additions)
