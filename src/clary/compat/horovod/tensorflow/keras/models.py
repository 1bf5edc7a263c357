"""Distributed optimizers of Keras, and loading of models that were saved with them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import optimizer as optimizers
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Average, Sum
from horovod.tensorflow.tape import variables_of


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Change an optimizer of Keras so that it reduces its gradients over all ranks, and return the same object.

    Args:
        optimizer: an optimizer of Keras.
        op: Average or Sum.
        name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor,
            backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set,
            scale_local_gradients: as for `horovod.tensorflow.DistributedOptimizer`.
    Raises: ValueError for another op or options that exclude each other; TypeError for an object that is not an
    optimizer.
    """
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    return optimizers.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:
    """Return a distributed optimizer that keeps the gradients of some layers local to their rank.

    Args:
        optimizer, args, kwargs: as `DistributedOptimizer`.
        local_layers: a layer of Keras or a list of layers, whose weights exist.
    Raises: ValueError for other `local_layers`.
    """
    local = variables_of(local_layers)
    distributed = DistributedOptimizer(optimizer, *args, **kwargs)
    for variable in local:
        distributed.register_local_var(variable)
    return distributed


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a saved model with its optimizer, which then reduces gradients over all ranks.

    Args:
        filepath: as tf.keras.models.load_model.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: names and classes or functions that Keras does not know.
        compression: compressor of gradients for sending.
        legacy_opts: has no effect; optimizers of legacy Keras are found anyway.
    Returns: the model; its optimizer has the saved state.
    Raises: errors of Keras for a file that is not a model.
    """
    known = {one.__name__: one for one in custom_optimizers or ()}
    model = tf.keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
