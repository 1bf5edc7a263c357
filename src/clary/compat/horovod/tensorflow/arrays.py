"""Collectives on NumPy arrays: each function makes engine requests, waits for them, and returns new arrays.

This module does not use TensorFlow. Input arrays are C-contiguous and stay unchanged. Names, sizes and ranks are looked
up when an operation runs, so a graph stays valid after a change of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from horovod.common.arrays import (
    Call,
    Room,
    Scaling,
    as_bits,
    buffer_of,
    counts_of,
    dtype_of,
    root_index,
    scaled,
    scaling_in_place,
)

from clary.train.collective.adapters.tensorflow.blocks import Blocks
from clary.train.collective.adapters.tensorflow.layout import lay_out
from clary.train.horovod import world
from clary.train.horovod.requests import Description, Reduction, Request, Verb

_blocks = Blocks()


def all_reduce(arrays: Sequence[np.ndarray], call: Call, scaling: Scaling) -> list[np.ndarray]:
    """Reduce each array over the ranks of a process set.

    Args:
        arrays: of any shapes, equal on all ranks.
    Raises: HorovodInternalError; ValueError for a type that cannot be reduced.
    """
    base, names, is_nameless = call.named("allreduce", len(arrays))
    group, group_size = call.group(base, len(arrays))
    layout = lay_out([array.nbytes for array in arrays])
    block = _blocks.take(layout.num_bytes)
    requests, results = [], []
    for name, array, offset in zip(names, arrays, layout.offsets, strict=True):
        taken, factor = scaling.divided(array.dtype, call.process_set)
        target = block[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        description = Description(
            Verb.ALLREDUCE, dtype_of(array), array.shape, taken, group=group, group_size=group_size
        )
        source = scaled(array, scaling.before)
        request = Request(name, description, buffer_of(source), buffer_of(target), is_nameless=is_nameless)
        request.finish = scaling_in_place(target, factor)
        requests.append(request)
        results.append(target)
    call.run(requests)
    return results


def all_gather(arrays: Sequence[np.ndarray], call: Call) -> list[np.ndarray]:
    """Concatenate each array of all ranks along the first axis, whose length may differ by rank.

    Raises: HorovodInternalError.
    """
    base, names, is_nameless = call.named("allgather", len(arrays))
    group, group_size = call.group(base, len(arrays))
    requests, rooms = [], []
    for name, array in zip(names, arrays, strict=True):
        rows = array if array.ndim else array.reshape(1)
        bits = as_bits(rows)
        description = Description(Verb.ALLGATHER, dtype_of(bits), bits.shape[1:], group=group, group_size=group_size)
        room = Room(rows, take=_blocks.take)
        requests.append(room.request(name, description, bits, is_nameless=is_nameless))
        rooms.append(room)
    call.run(requests)
    return [room.result() for room in rooms]


def broadcast(arrays: Sequence[np.ndarray], root_rank: int, call: Call) -> list[np.ndarray]:
    """Return the arrays of one rank.

    Args:
        arrays: of any shapes, equal on all ranks.
        root_rank: rank among all ranks, even if a process set is given.
    Raises: HorovodInternalError if the operation fails or the root is not in the process set.
    """
    root = root_index(root_rank, call.process_set)
    _, names, is_nameless = call.named("broadcast", len(arrays))
    layout = lay_out([array.nbytes for array in arrays])
    block = _blocks.take(layout.num_bytes)
    requests, results = [], []
    for name, array, offset in zip(names, arrays, layout.offsets, strict=True):
        bits = as_bits(array)
        target = block[offset : offset + array.nbytes].view(bits.dtype).reshape(array.shape)
        description = Description(Verb.BROADCAST, dtype_of(bits), array.shape, root=root)
        requests.append(Request(name, description, buffer_of(bits), buffer_of(target), is_nameless=is_nameless))
        results.append(target.view(array.dtype))
    call.run(requests)
    return results


def all_to_all(array: np.ndarray, splits: np.ndarray | None, call: Call) -> tuple[np.ndarray, np.ndarray]:
    """Send each rank its rows; return the received rows in rank order, and the number of rows from each rank.

    Args:
        array: any array but a scalar.
        splits: rows for each rank, shape [ranks]; None or an empty array cuts the first axis equally.
    Raises: ValueError for splits that do not fit; HorovodInternalError.
    """
    if not array.ndim:
        raise ValueError("alltoall takes a tensor with a first axis; got a scalar")
    given = None if splits is None or splits.size == 0 else [int(count) for count in splits]
    counts = counts_of(array.shape[0], given, len(world.ranks_of(call.process_set)))
    _, (name,), is_nameless = call.named("alltoall", 1)
    bits = as_bits(array)
    room = Room(array, take=_blocks.take)
    description = Description(Verb.ALLTOALL, dtype_of(bits), bits.shape[1:])
    request = room.request(name, description, bits, is_nameless=is_nameless)
    request.splits, request.on_splits = counts, room.take_counts
    call.run([request])
    return room.result(), np.array(room.counts, np.int32)


def reduce_scatter(arrays: Sequence[np.ndarray], call: Call, scaling: Scaling) -> list[np.ndarray]:
    """Reduce each array and return this rank's rows; the first ranks get one row more if rows do not divide evenly.

    Args:
        arrays: arrays, no scalars, of shapes equal on all ranks.
    Raises: HorovodInternalError; ValueError for a scalar, Adasum, or a type that cannot be reduced.
    """
    base, names, is_nameless = call.named("reducescatter", len(arrays))
    group, group_size = call.group(base, len(arrays))
    requests, rooms = [], []
    for name, array in zip(names, arrays, strict=True):
        if not array.ndim:
            raise ValueError("reducescatter takes a tensor with a first axis; got a scalar")
        if scaling.op is Reduction.ADASUM:
            raise ValueError("reducescatter does not support Adasum")
        taken, factor = scaling.divided(array.dtype, call.process_set)
        description = Description(
            Verb.REDUCESCATTER, dtype_of(array), array.shape, taken, group=group, group_size=group_size
        )
        room = Room(array, factor, take=_blocks.take)
        requests.append(room.request(name, description, scaled(array, scaling.before), is_nameless=is_nameless))
        rooms.append(room)
    call.run(requests)
    return [room.result() for room in rooms]
