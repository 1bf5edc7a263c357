"""Operations under the names of `horovod.tensorflow.mpi_ops`.

A `name` is equal on all ranks; without a name, all ranks must run the same operations in the same order.
`ignore_name_scope` has no effect: names do not include scopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from horovod.common import basics
from horovod.common.arrays import Call, Scaling
from horovod.common.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
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
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.util import handle_average as handle_average_backwards_compatibility
from horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from horovod.tensorflow import operations

from clary.train.collective.adapters.tensorflow.ordered import run_ordered
from clary.train.collective.adapters.tensorflow.xla import keep_from_xla
from clary.train.horovod import world
from clary.train.horovod.requests import Reduction

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

Average, Sum, Adasum, Min, Max, Product = Reduction
_basics = basics.HorovodBasics()
_UNKNOWN_SET = -1  # results of `process_set_included_op`
_NOT_INITIALIZED = -2


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Form the group of all ranks; a second call while the group exists only forms `process_sets`.

    Args:
        comm, process_sets: as for every framework, see `clary.train.horovod.process_sets.init`.
    """
    basics.init(comm, process_sets)
    keep_from_xla()


def _number(process_set: ProcessSet) -> int:
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} was not added: pass it to init, or to add_process_set")
    return int(process_set.process_set_id)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: Reduction = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    call = Call(name, _number(process_set))
    return operations.all_reduce([tensor], call, Scaling(Reduction(op), prescale_factor, postscale_factor))[0]


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: Reduction = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    call = Call(name, _number(process_set), is_group=True)
    return list(operations.all_reduce(tensors, call, Scaling(Reduction(op), prescale_factor, postscale_factor)))


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensors of all ranks, concatenated along their first axis.

    Args:
        tensor: of any shape; the length of the first axis may differ by rank.
        name: equal on all ranks.
        ignore_name_scope: has no effect.
        process_set: ranks that take part.
    """
    return operations.all_gather([tensor], Call(name, _number(process_set)))[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return several tensors, each concatenated over all ranks, in one group.

    Args: as `allgather`.
    """
    return list(operations.all_gather(tensors, Call(name, _number(process_set), is_group=True)))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of one rank on all ranks.

    Args:
        tensor: of any shape, equal on all ranks.
        root_rank: rank among all ranks, even if a process set is given.
        name, ignore_name_scope, process_set: as for `allgather`.
    """
    return operations.broadcast([tensor], root_rank, Call(name, _number(process_set)))[0]


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite the variables of all ranks with the variables of one rank, and return their values.

    Args:
        variables: variables in the same order on all ranks.
        root_rank, name, process_set: as for `broadcast`.
    """
    held = list(variables)
    values = operations.broadcast(held, root_rank, Call(name, _number(process_set)))
    assigned = [variable.assign(value) for variable, value in zip(held, values, strict=True)]
    return [
        tf.convert_to_tensor(one if one is not None else value) for one, value in zip(assigned, values, strict=True)
    ]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its rows of the tensor; return the received rows in rank order.

    Args:
        tensor: of any shape but a scalar.
        splits: rows for each rank; None cuts the first axis equally. With splits, a second tensor with the number of
            rows from each rank is returned.
        name, ignore_name_scope, process_set: as for `allgather`.
    """
    counts = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits)
    rows, received = operations.all_to_all(tensor, counts, Call(name, _number(process_set)))
    return rows if splits is None else (rows, received)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: Reduction = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    call = Call(name, _number(process_set))
    return operations.reduce_scatter([tensor], call, Scaling(Reduction(op), prescale_factor, postscale_factor))[0]


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: Reduction = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    call = Call(name, _number(process_set), is_group=True)
    return list(operations.reduce_scatter(tensors, call, Scaling(Reduction(op), prescale_factor, postscale_factor)))


def join() -> Any:
    """Take part in the all-reduces of the other ranks with zeros until all ranks have joined.

    Returns: the rank that joined last, a scalar tensor of int32.
    """
    (last,) = run_ordered(lambda _: [np.array(world.engine().join(), np.int32)], [], [tf.TensorSpec([], tf.int32)])
    return last


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks when the graph runs, a scalar of int32."""
    return _number_op(lambda: len(world.ranks_of(process_set_id)))


def rank_op(name: str | None = None) -> Any:
    """Return this process's rank when the graph runs, a scalar of int32."""
    return _number_op(world.rank)


def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks of this host when the graph runs, a scalar of int32."""
    return _number_op(local_size)


def local_rank_op(name: str | None = None) -> Any:
    """Return this process's rank on its host when the graph runs, a scalar of int32."""
    return _number_op(local_rank)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 where this process is in a process set, else 0; -1 for an unknown set, -2 before `init`."""

    def included() -> int:
        if not world.is_started():
            return _NOT_INITIALIZED
        ranks = world.set_ranks().get(process_set_id)
        return _UNKNOWN_SET if ranks is None else int(world.rank() in ranks)

    return _number_op(included)


def _number_op(look: Any) -> Any:
    if tf.executing_eagerly():
        return tf.constant(look(), tf.int32)
    number = tf.numpy_function(lambda: np.int32(look()), [], tf.int32)
    number.set_shape([])
    return number
