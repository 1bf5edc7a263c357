"""Operations on arrays of MXNet. Each waits until all ranks have called it, and returns its result.

Horovod queues operations and returns at once, so that ranks may call them in different orders. With this module, ranks
that call operations in different orders block each other; only the operations that one call takes as a list may be in
different orders on different ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx
import numpy as np
from horovod.common.arrays import (
    Call,
    Room,
    Scaling,
    buffer_of,
    counts_of,
    dtype_of,
    root_index,
    scaled,
    scaling_in_place,
)
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.mxnet import memory

from clary.train.horovod import world
from clary.train.horovod.requests import Description, Reduction, Request, Verb


def call_of(name: str | None, process_set: ProcessSet, *, is_group: bool = False) -> Call:
    """Return the `Call` of an operation.

    Args:
        name: equal on all ranks, or None.
        process_set: ranks that take part.
        is_group: whether the operation waits until all of its arrays are ready on all ranks.

    Raises: ValueError for a process set that was not added.
    """
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} was not added: give it to init or to add_process_set")
    return Call(name, process_set.process_set_id, is_group)


def all_reduce(
    tensors: Sequence[mx.nd.NDArray], targets: Sequence[mx.nd.NDArray], call: Call, scaling: Scaling
) -> None:
    """Reduce each array over the ranks of a process set, into its target; array and target may be the same.

    Args:
        tensors: of any shapes, equal on all ranks.
        targets: arrays of the same shapes and types, for the results.
        call: name and process set.
        scaling: reduction and factors.

    Raises: HorovodInternalError; ValueError for Adasum, and for a sparse array or an unsupported element type.
    """
    reduce_all([(tensors, targets, call)], scaling)


def reduce_all(
    calls: Sequence[tuple[Sequence[mx.nd.NDArray], Sequence[mx.nd.NDArray], Call]], scaling: Scaling
) -> None:
    """Run several all-reduces at once, in the order in which ranks are ready for them.

    Args:
        calls: for each all-reduce its arrays, targets and call, as for `all_reduce`; all in one process set.
        scaling: reduction and factors of all calls.

    Raises: as `all_reduce`.
    """
    if scaling.op is Reduction.ADASUM:
        raise ValueError("horovod.mxnet does not support Adasum, here as in Horovod itself: use Sum or Average")
    requests, written = [], []
    for tensors, targets, call in calls:
        base, names, is_nameless = call.named("allreduce", len(tensors))
        group, group_size = call.group(base, len(tensors))
        for name, tensor, target in zip(names, tensors, targets, strict=True):
            source, result = memory.view(tensor), memory.view(target)
            taken, factor = scaling.divided(source.dtype, call.process_set)
            description = Description(
                Verb.ALLREDUCE,
                dtype_of(source),
                source.shape,
                taken,
                group=group,
                group_size=group_size,
                place=memory.place_of(tensor),
            )
            request = Request(
                name,
                description,
                buffer_of(scaled(source, scaling.before)),
                buffer_of(result),
                is_nameless=is_nameless,
                finish=scaling_in_place(result, factor),
            )
            requests.append(request)
            written.append((target, result))
    if calls:
        calls[0][2].run(requests)
    for target, result in written:
        _write_back(target, result)


def all_gather(tensors: Sequence[mx.nd.NDArray], call: Call) -> list[mx.nd.NDArray]:
    """Return each array, concatenated over the ranks along its first axis, whose length may differ by rank.

    Raises: HorovodInternalError; ValueError for a sparse array or an unsupported element type.
    """
    base, names, is_nameless = call.named("allgather", len(tensors))
    group, group_size = call.group(base, len(tensors))
    requests, rooms = [], []
    for name, tensor in zip(names, tensors, strict=True):
        rows = memory.view(tensor)
        description = Description(
            Verb.ALLGATHER,
            dtype_of(rows),
            rows.shape[1:],
            group=group,
            group_size=group_size,
            place=memory.place_of(tensor),
        )
        room = Room(rows, take=_block)
        requests.append(room.request(name, description, rows, is_nameless=is_nameless))
        rooms.append(room)
    call.run(requests)
    return [memory.new_like(room.result(), tensor) for room, tensor in zip(rooms, tensors, strict=True)]


def broadcast(tensor: mx.nd.NDArray, target: mx.nd.NDArray, root_rank: int, call: Call) -> None:
    """Write the array of one rank into the target of all ranks; array and target may be the same.

    Args:
        tensor: of one shape and type on all ranks.
        target: of the same shape and type.
        root_rank: rank among all ranks, even if a process set is given.
        call: name and process set.

    Raises: HorovodInternalError if the operation fails or the root is not in the process set; ValueError for a sparse
    array or an unsupported element type.
    """
    root = root_index(root_rank, call.process_set)
    _, (name,), is_nameless = call.named("broadcast", 1)
    source, result = memory.view(tensor), memory.view(target)
    description = Description(
        Verb.BROADCAST,
        dtype_of(source),
        source.shape,
        root=root,
        place=memory.place_of(tensor),
    )
    request = Request(name, description, buffer_of(source), buffer_of(result), is_nameless=is_nameless)
    call.run([request])
    _write_back(target, result)


def all_to_all(tensor: mx.nd.NDArray, splits: mx.nd.NDArray | None, call: Call) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Send each rank its rows; return the received rows in rank order, and the number of rows from each rank.

    Args:
        tensor: any array but a scalar.
        splits: rows for each rank, an array of int32, shape [ranks]; None cuts the first axis equally.
        call: name and process set.

    Raises: ValueError for splits of another type, and for a sparse array or an unsupported element type;
    HorovodInternalError if the operation fails or the splits do not fit.
    """
    rows = memory.view(tensor)
    counts = _counts_of(rows, splits, len(world.ranks_of(call.process_set)))
    _, (name,), is_nameless = call.named("alltoall", 1)
    room = Room(rows, take=_block)
    description = Description(Verb.ALLTOALL, dtype_of(rows), rows.shape[1:], place=memory.place_of(tensor))
    request = room.request(name, description, rows, is_nameless=is_nameless)
    request.splits, request.on_splits = counts, room.take_counts
    call.run([request])
    return memory.new_like(room.result(), tensor), mx.nd.array(room.counts, dtype="int32")


def reduce_scatter(tensors: Sequence[mx.nd.NDArray], call: Call, scaling: Scaling) -> list[mx.nd.NDArray]:
    """Reduce each array and return this rank's rows; the first ranks get one row more if rows do not divide evenly.

    Args:
        tensors: arrays, no scalars, of shapes equal on all ranks.
        call: name and process set.
        scaling: reduction and factors.

    Raises: HorovodInternalError; ValueError for a sparse array or an unsupported element type.
    """
    base, names, is_nameless = call.named("reducescatter", len(tensors))
    group, group_size = call.group(base, len(tensors))
    requests, rooms = [], []
    for name, tensor in zip(names, tensors, strict=True):
        rows = memory.view(tensor)
        taken, factor = scaling.divided(rows.dtype, call.process_set)
        description = Description(
            Verb.REDUCESCATTER,
            dtype_of(rows),
            rows.shape,
            taken,
            group=group,
            group_size=group_size,
            place=memory.place_of(tensor),
        )
        room = Room(rows, factor, take=_block)
        requests.append(room.request(name, description, scaled(rows, scaling.before), is_nameless=is_nameless))
        rooms.append(room)
    call.run(requests)
    return [memory.new_like(room.result(), tensor) for room, tensor in zip(rooms, tensors, strict=True)]


def _write_back(target: mx.nd.NDArray, result: np.ndarray) -> None:
    """Copy a result to a target on the GPU; a target in host memory was written in place."""
    if memory.place_of(target) == "gpu":
        target[:] = result


def _counts_of(rows: np.ndarray, splits: mx.nd.NDArray | None, num_ranks: int) -> list[int]:
    if splits is not None and np.dtype(splits.dtype) != np.int32:
        raise ValueError(f"splits must be of type int32; got {np.dtype(splits.dtype).name}")
    given = None if splits is None else [int(count) for count in splits.asnumpy()]
    try:
        return counts_of(rows.shape[0], given, num_ranks)  # type: ignore[no-any-return]
    except ValueError as error:
        raise HorovodInternalError(str(error)) from error


def _block(num_bytes: int) -> np.ndarray:
    return np.empty(num_bytes, np.uint8)
