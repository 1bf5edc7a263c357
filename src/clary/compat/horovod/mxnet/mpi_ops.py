"""All operations, under the module name that programs import. MPI is not used.

Arguments that operations share: `name` is equal on all ranks (if None, a name is made up, and all ranks must call the
same operations in the same order); `priority` has no effect, as operations run when they are called; `process_set`
holds the ranks that take part; `prescale_factor` multiplies each rank's array first, `postscale_factor` the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
from horovod.common.arrays import Scaling
from horovod.common.basics import HorovodBasics as _basics
from horovod.common.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.util import handle_average
from horovod.mxnet import operations
from horovod.mxnet.operations import call_of

from clary.train.horovod.requests import Reduction

Average, Sum, Adasum, Min, Max, Product = Reduction


def allreduce(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """Return an array reduced over all ranks.

    Args:
        tensor: of one shape and type on all ranks; it is not changed.
        average: argument of Horovod before 0.24; use `op`.
        name, priority, prescale_factor, postscale_factor, process_set: see the module.
        op: Average (if None), Sum, Min, Max or Product.

    Raises: HorovodInternalError; ValueError for Adasum and for an unsupported element type.
    """
    scaling = Scaling(handle_average(op, average), prescale_factor, postscale_factor)
    target = mx.nd.empty(tensor.shape, ctx=tensor.context, dtype=tensor.dtype)
    operations.all_reduce([tensor], [target], call_of(name, process_set), scaling)
    return target


def allreduce_(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """Reduce an array over all ranks in place, and return it.

    Args: as `allreduce`.
    """
    scaling = Scaling(handle_average(op, average), prescale_factor, postscale_factor)
    operations.all_reduce([tensor], [tensor], call_of(name, process_set), scaling)
    return tensor


def grouped_allreduce(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[mx.nd.NDArray]:
    """Return several arrays reduced over all ranks in one group.

    Args: as `allreduce`.
    """
    scaling = Scaling(handle_average(op, average), prescale_factor, postscale_factor)
    targets = [mx.nd.empty(tensor.shape, ctx=tensor.context, dtype=tensor.dtype) for tensor in tensors]
    operations.all_reduce(tensors, targets, call_of(name, process_set, is_group=True), scaling)
    return targets


def grouped_allreduce_(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[mx.nd.NDArray]:
    """Reduce several arrays over all ranks in place in one group, and return them.

    Args: as `allreduce`.
    """
    scaling = Scaling(handle_average(op, average), prescale_factor, postscale_factor)
    operations.all_reduce(tensors, tensors, call_of(name, process_set, is_group=True), scaling)
    return tensors


def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Return the arrays of all ranks, concatenated along their first axis.

    Args:
        tensor: the length of the first axis may differ by rank.
        name, priority, process_set: see the module.

    Raises: HorovodInternalError.
    """
    return operations.all_gather([tensor], call_of(name, process_set))[0]


def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """Return several arrays gathered from all ranks in one group.

    Args: as `allgather`.
    """
    gathered: list[mx.nd.NDArray] = operations.all_gather(tensors, call_of(name, process_set, is_group=True))
    return gathered


def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Return the array of one rank.

    Args:
        tensor: of one shape and type on all ranks; it is not changed.
        root_rank: rank among all ranks, even if a process set is given.
        name, priority, process_set: see the module.

    Raises: HorovodInternalError.
    """
    target = mx.nd.empty(tensor.shape, ctx=tensor.context, dtype=tensor.dtype)
    operations.broadcast(tensor, target, root_rank, call_of(name, process_set))
    return target


def broadcast_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Overwrite this rank's array with the array of one rank, and return it.

    Args: as `broadcast`.
    """
    operations.broadcast(tensor, tensor, root_rank, call_of(name, process_set))
    return tensor


def alltoall(
    tensor: mx.nd.NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its rows; return the received rows and, with `splits`, the number of rows from each rank.

    Args:
        tensor: any array but a scalar.
        splits: rows for each rank, an array of int32 or a sequence; None cuts the first axis equally.
        name, priority, process_set: see the module.

    Raises: ValueError for splits of another type; HorovodInternalError.
    """
    given = splits
    if given is not None and not isinstance(given, mx.nd.NDArray):
        given = mx.nd.array(given, dtype="int32")
    rows, counts = operations.all_to_all(tensor, given, call_of(name, process_set))
    return rows if splits is None else (rows, counts)


def reducescatter(
    tensor: mx.nd.NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> mx.nd.NDArray:
    """Reduce an array over all ranks, and return this rank's rows of the result.

    Args:
        tensor: any array but a scalar, of one shape on all ranks.
        op: Average or Sum.
        name, priority, process_set, prescale_factor, postscale_factor: see the module.

    Raises: ValueError for a scalar or another `op`; HorovodInternalError.
    """
    _check_scatter([tensor], op)
    scaling = Scaling(Reduction(op), prescale_factor, postscale_factor)
    return operations.reduce_scatter([tensor], call_of(name, process_set), scaling)[0]


def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[mx.nd.NDArray]:
    """Reduce several arrays in one group, and return this rank's rows of each array.

    Args: as `reducescatter`.
    """
    _check_scatter(tensors, op)
    scaling = Scaling(Reduction(op), prescale_factor, postscale_factor)
    parts: list[mx.nd.NDArray] = operations.reduce_scatter(tensors, call_of(name, process_set, is_group=True), scaling)
    return parts


def _check_scatter(tensors: Sequence[mx.nd.NDArray], op: int) -> None:
    if op not in (Average, Sum):
        raise ValueError(f"reducescatter of MXNet takes Average or Sum, got {op!r}")
    if any(tensor.shape == () for tensor in tensors):
        raise ValueError("reducescatter takes arrays with a first axis; got a scalar")


__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "_basics",
    "add_process_set",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
