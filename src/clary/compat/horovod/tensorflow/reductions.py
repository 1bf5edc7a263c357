"""All-reduce and reduce-scatter as programs call them, with compression and for sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Sum,
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _number,
    _reducescatter,
    check_num_rank_power_of_2,
    grouped_allgather,
    handle_average_backwards_compatibility,
    size,
    size_op,
)

from clary.train.horovod.requests import Reduction


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Return a tensor reduced over all ranks.

    Args:
        tensor: of a shape equal on all ranks; or tf.IndexedSlices, whose indices and values are gathered.
        average: argument of Horovod before 0.19; use `op`.
        device_dense, device_sparse: devices of inputs and results; all operations run on the CPU.
        compression: compressor of the tensor for sending.
        op: Average (if None), Sum, Adasum, Min, Max or Product.
        prescale_factor, postscale_factor: multiply each rank's tensor first, and the result.
        name: equal on all ranks.
        process_set: ranks that take part.
        ignore_name_scope: has no effect.
    Raises: NotImplementedError for sparse tensors with factors or an op other than Average and Sum, and for Adasum in a
        process set or with a number of ranks that is not a power of 2.
    """
    reduction = handle_average_backwards_compatibility(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        return _reduce_sparse([tensor], reduction, (prescale_factor, postscale_factor), device_sparse, process_set)[0]
    _check_adasum(reduction, process_set)
    with tf.device(device_dense):
        packed, context = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _allreduce(packed, name, reduction, prescale_factor, postscale_factor, ignore_name_scope, process_set)
        return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Return several tensors reduced over all ranks, as one operation.

    Args: as `allreduce`.
    """
    reduction = handle_average_backwards_compatibility(op, average)
    results: list[Any] = [None] * len(tensors)
    sparse = [place for place, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [place for place in range(len(tensors)) if place not in sparse]
    scales = (prescale_factor, postscale_factor)
    for place, tensor in zip(
        sparse,
        _reduce_sparse([tensors[place] for place in sparse], reduction, scales, device_sparse, process_set),
        strict=True,
    ):
        results[place] = tensor
    if not dense:
        return results
    _check_adasum(reduction, process_set)
    with tf.device(device_dense):
        pairs = [compression.compress(tf.convert_to_tensor(tensors[place])) for place in dense]
        packed = [tensor for tensor, _ in pairs]
        reduced = _grouped_allreduce(packed, name, reduction, *scales, ignore_name_scope, process_set)
        for place, tensor, (_, context) in zip(dense, reduced, pairs, strict=True):
            results[place] = compression.decompress(tensor, context)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return this rank's rows of a tensor reduced over all ranks.

    Args:
        tensor: of a shape equal on all ranks, no scalar; the first ranks get one row more if rows do not divide evenly.
        op: Average, Sum, Min, Max or Product.
        device_dense, compression, name, process_set, ignore_name_scope, prescale_factor, postscale_factor: as for
            `allreduce`.
    """
    with tf.device(device_dense):
        packed, context = compression.compress(tf.convert_to_tensor(tensor))
        scales = (prescale_factor, postscale_factor)
        reduced = _reducescatter(packed, name, Reduction(op), ignore_name_scope, process_set, *scales)
        return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Return this rank's rows of several tensors reduced over all ranks, as one operation.

    Args: as `reducescatter`.
    """
    if not tensors:
        return []
    with tf.device(device_dense):
        pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
        scales = (prescale_factor, postscale_factor)
        packed = [tensor for tensor, _ in pairs]
        reduced = _grouped_reducescatter(packed, name, Reduction(op), ignore_name_scope, process_set, *scales)
        return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs, strict=True)]


def _reduce_sparse(
    slices: Sequence[Any], reduction: Reduction, scales: tuple[float, float], device: str, process_set: ProcessSet
) -> list[Any]:
    """Return tf.IndexedSlices with the indices and values of all ranks."""
    if not slices:
        return []
    if reduction is Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround please pass "
            "sparse_as_dense=True to DistributedOptimizer"
        )
    if reduction not in (Sum, Average):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if scales != (1.0, 1.0):
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices")
    with tf.device(device):
        count = len(slices)
        parts = [one.values for one in slices] + [one.indices for one in slices]
        gathered = grouped_allgather(parts, process_set=process_set)
        values, indices = gathered[:count], gathered[count:]
        if reduction is Average:
            num_ranks = size_op(_number(process_set))
            values = [value / tf.cast(num_ranks, value.dtype) for value in values]
    return [
        tf.IndexedSlices(value, index, dense_shape=one.dense_shape)
        for value, index, one in zip(values, indices, slices, strict=True)
    ]


def _check_adasum(reduction: Reduction, process_set: ProcessSet) -> None:
    if reduction is not Adasum:
        return
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if not check_num_rank_power_of_2(size()):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")
