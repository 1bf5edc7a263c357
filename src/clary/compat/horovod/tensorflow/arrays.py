"""NumPy arrays through the engine: each function makes requests, waits for them, and returns new arrays.

Nothing here knows TensorFlow. Arrays are C-contiguous and not written. Names, sizes and ranks are looked up when an
operation runs, so a graph outlives a change of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clary.train._native.interface import Dtype
from clary.train.collective.adapters.tensorflow.blocks import Blocks
from clary.train.collective.adapters.tensorflow.layout import lay_out
from clary.train.collective.buffers import Buffer
from clary.train.horovod import world
from clary.train.horovod.errors import HorovodInternalError
from clary.train.horovod.requests import Description, Reduction, Request, Verb

_DTYPES = {
    "float32": Dtype.FLOAT32,
    "float64": Dtype.FLOAT64,
    "float16": Dtype.FLOAT16,
    "bfloat16": Dtype.BFLOAT16,
    "int8": Dtype.INT8,
    "int16": Dtype.INT16,
    "int32": Dtype.INT32,
    "int64": Dtype.INT64,
    "uint8": Dtype.UINT8,
    "bool": Dtype.BOOL,
}
_AS_BITS = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}  # where nothing is computed
_TWO_BYTES = 2  # of float16 and bfloat16
_blocks = Blocks()


@dataclass(frozen=True)
class Call:
    """One operation, as it was called.

    Args:
        name: equal on all ranks; None: made up for each run, in the order in which nameless operations run.
        process_set: its number.
        is_group: whether its tensors are ready all at once or not at all.
    """

    name: str | None = None
    process_set: int = world.GLOBAL_SET
    is_group: bool = False

    @property
    def nameless(self) -> Call:
        """The same for another operation, as its gradient."""
        return replace(self, name=None)

    def named(self, verb: str, count: int) -> tuple[str, list[str], bool]:
        """Return the name of the operation, one for each of its tensors, and whether they were made up."""
        is_nameless = self.name is None
        base = world.engine(self.process_set).make_name(verb) if is_nameless else f"{verb}.{self.name}"
        single = count == 1 and not self.is_group
        return base, [base] if single else [f"{base}_{place + 1}of{count}" for place in range(count)], is_nameless

    def group(self, base: str, count: int) -> tuple[str, int]:
        """Return name and size of the group for a description."""
        return (base, count) if self.is_group else ("", 0)


@dataclass(frozen=True)
class Scaling:
    """A reduction and the factors before and after it."""

    op: Reduction
    before: float = 1.0
    after: float = 1.0


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
        taken, factor = _divided(scaling, array.dtype, call.process_set)
        target = block[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        description = Description(
            Verb.ALLREDUCE, _dtype_of(array), array.shape, taken, group=group, group_size=group_size
        )
        source = _scaled(array, scaling.before)
        request = Request(name, description, _buffer(source), _buffer(target), is_nameless=is_nameless)
        if factor != 1.0:
            request.finish = _scaling_in_place(target, factor)
        requests.append(request)
        results.append(target)
    _run(requests, call)
    return results


def all_gather(arrays: Sequence[np.ndarray], call: Call) -> list[np.ndarray]:
    """Collect each array of all ranks behind each other along their first axis; lengths of it may differ by rank.

    Raises: HorovodInternalError.
    """
    base, names, is_nameless = call.named("allgather", len(arrays))
    group, group_size = call.group(base, len(arrays))
    requests, rooms = [], []
    for name, array in zip(names, arrays, strict=True):
        rows = array if array.ndim else array.reshape(1)
        bits = _as_bits(rows)
        description = Description(Verb.ALLGATHER, _dtype_of(bits), bits.shape[1:], group=group, group_size=group_size)
        room = _Room(rows)
        requests.append(_rows_request(name, description, bits, room, is_nameless))
        rooms.append(room)
    _run(requests, call)
    return [room.result() for room in rooms]


def broadcast(arrays: Sequence[np.ndarray], root_rank: int, call: Call) -> list[np.ndarray]:
    """Return the arrays of one rank.

    Args:
        arrays: of any shapes, equal on all ranks.
        root_rank: rank among all ranks, also where a process set is given.
    Raises: HorovodInternalError, also for a root that is not in the process set.
    """
    ranks = world.ranks_of(call.process_set)
    if root_rank not in ranks:
        raise HorovodInternalError(f"broadcast: root rank {root_rank} is not among the ranks {list(ranks)}")
    _, names, is_nameless = call.named("broadcast", len(arrays))
    layout = lay_out([array.nbytes for array in arrays])
    block = _blocks.take(layout.num_bytes)
    requests, results = [], []
    for name, array, offset in zip(names, arrays, layout.offsets, strict=True):
        bits = _as_bits(array)
        target = block[offset : offset + array.nbytes].view(bits.dtype).reshape(array.shape)
        description = Description(Verb.BROADCAST, _dtype_of(bits), array.shape, root=ranks.index(root_rank))
        requests.append(Request(name, description, _buffer(bits), _buffer(target), is_nameless=is_nameless))
        results.append(target.view(array.dtype))
    _run(requests, call)
    return results


def all_to_all(array: np.ndarray, splits: np.ndarray | None, call: Call) -> tuple[np.ndarray, np.ndarray]:
    """Give each rank its rows; return the rows received in rank order, and how many came from each rank.

    Args:
        array: with a first axis.
        splits: rows for each rank, shape [ranks]; None cuts the first axis equally.
    Raises: ValueError for splits that do not fit; HorovodInternalError.
    """
    counts = _counts_of(array, splits, len(world.ranks_of(call.process_set)))
    _, (name,), is_nameless = call.named("alltoall", 1)
    bits = _as_bits(array)
    room = _Room(array)
    description = Description(Verb.ALLTOALL, _dtype_of(bits), bits.shape[1:])
    request = _rows_request(name, description, bits, room, is_nameless)
    request.splits, request.on_splits = counts, room.take_counts
    _run([request], call)
    return room.result(), np.array(room.counts, np.int32)


def reduce_scatter(arrays: Sequence[np.ndarray], call: Call, scaling: Scaling) -> list[np.ndarray]:
    """Reduce each array and return this rank's rows of it; the first ranks get one row more where rows do not divide.

    Args:
        arrays: with a first axis; of shapes equal on all ranks.
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
        taken, factor = _divided(scaling, array.dtype, call.process_set)
        description = Description(
            Verb.REDUCESCATTER, _dtype_of(array), array.shape, taken, group=group, group_size=group_size
        )
        room = _Room(array, factor)
        requests.append(_rows_request(name, description, _scaled(array, scaling.before), room, is_nameless))
        rooms.append(room)
    _run(requests, call)
    return [room.result() for room in rooms]


def _run(requests: list[Request], call: Call) -> None:
    """Submit requests, and wait until all have ended."""
    if requests:
        engine = world.engine(call.process_set)
        engine.submit(requests, wakes_thread=False)
        engine.wait([request.handle for request in requests])


class _Room:
    """Memory of a result whose number of rows is known only when the operation runs."""

    def __init__(self, like: np.ndarray, factor: float = 1.0) -> None:
        self._like = like
        self._factor = factor
        self._memory: np.ndarray | None = None
        self.counts: list[int] = []

    def allocate(self, rows: int) -> Buffer:
        """Return memory for so many rows."""
        shape = (rows, *self._like.shape[1:])
        num_bytes = int(np.prod(shape, dtype=np.int64)) * self._like.itemsize
        self._memory = _blocks.take(num_bytes).view(self._like.dtype).reshape(shape)
        return _buffer(_as_bits(self._memory))

    def take_counts(self, counts: list[int]) -> None:
        """Keep the number of rows that each rank sends."""
        self.counts = counts

    def finish(self) -> None:
        """Scale the result."""
        if self._memory is not None and self._factor != 1.0:
            self._memory[...] = _scaled(self._memory, self._factor)

    def result(self) -> np.ndarray:
        """Return the result, once the operation has ended."""
        if self._memory is None:
            raise HorovodInternalError("the operation has left no result")
        return self._memory


def _rows_request(name: str, what: Description, rows: np.ndarray, room: _Room, is_nameless: bool) -> Request:
    return Request(
        name,
        what,
        _buffer(rows),
        allocate=room.allocate,
        row_elements=int(np.prod(rows.shape[1:], dtype=np.int64)),
        rows=rows.shape[0],
        is_nameless=is_nameless,
        finish=room.finish,
    )


def _counts_of(array: np.ndarray, splits: np.ndarray | None, num_ranks: int) -> list[int]:
    if not array.ndim:
        raise ValueError("alltoall takes a tensor with a first axis; got a scalar")
    if splits is None or splits.size == 0:
        if array.shape[0] % num_ranks:
            raise ValueError(f"alltoall without splits: {array.shape[0]} rows are no multiple of {num_ranks} ranks")
        return [array.shape[0] // num_ranks] * num_ranks
    counts = [int(count) for count in splits]
    if len(counts) != num_ranks or min(counts) < 0 or sum(counts) > array.shape[0]:
        raise ValueError(
            f"splits {counts}: expected {num_ranks} counts of 0 or more, together at most {array.shape[0]} rows"
        )
    return counts


def _divided(scaling: Scaling, dtype: np.dtype, process_set: int) -> tuple[Reduction, float]:
    """Return the reduction that runs and the factor after it: averages of whole numbers are sums, divided later."""
    if scaling.op is Reduction.AVERAGE and dtype.kind in "iub":
        return Reduction.SUM, scaling.after / len(world.ranks_of(process_set))
    return scaling.op, scaling.after


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """Return the array times a factor, rounded to zero where it holds whole numbers; itself for 1.

    Whole numbers are multiplied in float64, types of two bytes in float32, as by Horovod on a CPU.
    """
    if factor == 1.0:
        return array
    if array.dtype.kind in "iub":
        return np.trunc(array.astype(np.float64) * factor).astype(array.dtype)
    wide = np.float32 if array.dtype.itemsize == _TWO_BYTES else array.dtype.type
    return np.asarray((array.astype(wide) * wide(factor)).astype(array.dtype))


def _scaling_in_place(array: np.ndarray, factor: float) -> Callable[[], None]:
    def scale() -> None:
        array[...] = _scaled(array, factor)

    return scale


def _as_bits(array: np.ndarray) -> np.ndarray:
    """Return an array that is moved, not computed with, in a type that cores know."""
    kind = _AS_BITS.get(array.dtype.name)
    return array if kind is None else array.view(kind)


def _dtype_of(array: np.ndarray) -> Dtype:
    dtype = _DTYPES.get(array.dtype.name)
    if dtype is None:
        raise ValueError(f"tensors of type {array.dtype.name} cannot travel: cast to one of {', '.join(_DTYPES)}")
    return dtype


def _buffer(array: np.ndarray) -> Buffer:
    address: int = array.__array_interface__["data"][0]
    return Buffer(address, array.size, _dtype_of(array), True, array)
