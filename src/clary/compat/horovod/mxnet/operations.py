"""Operations on arrays of MXNet. Each waits until all ranks have called it, and returns when its result is there.

Horovod's own queue them and return at once, so that ranks may call them in different orders. Here ranks that call
operations in different orders wait for each other, unless the operations stand in one list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mxnet as mx
import numpy as np
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.mxnet import memory

from clary.train.collective.buffers import Buffer
from clary.train.horovod import world
from clary.train.horovod.requests import Description, Reduction, Request, Verb

_TWO_BYTES = 2  # of float16


@dataclass(frozen=True)
class Call:
    """One operation, as it was called.

    Args:
        name: equal on all ranks; None: made up, in the order in which nameless operations are called.
        process_set: ranks that take part.
        is_group: whether its arrays are ready all at once or not at all.
    """

    name: str | None
    process_set: ProcessSet
    is_group: bool = False

    @property
    def number(self) -> int:
        """The number of the process set. Raises: ValueError for one that was not added."""
        number: int | None = self.process_set.process_set_id
        if number is None:
            raise ValueError(f"{self.process_set} was not added: give it to init or to add_process_set")
        return number

    def named(self, verb: str, count: int) -> tuple[str, list[str], bool]:
        """Return the name of the operation, one for each of its arrays, and whether they were made up."""
        is_nameless = self.name is None
        base = world.engine(self.number).make_name(verb) if is_nameless else f"{verb}.{self.name}"
        if count == 1 and not self.is_group:
            return base, [base], is_nameless
        return base, [f"{base}_{place + 1}of{count}" for place in range(count)], is_nameless

    def group(self, base: str, count: int) -> tuple[str, int]:
        """Return name and size of the group for a description."""
        return (base, count) if self.is_group else ("", 0)


@dataclass(frozen=True)
class Scaling:
    """A reduction and the factors before and after it."""

    op: Reduction
    before: float = 1.0
    after: float = 1.0


def all_reduce(
    tensors: Sequence[mx.nd.NDArray], targets: Sequence[mx.nd.NDArray], call: Call, scaling: Scaling
) -> None:
    """Reduce each array over the ranks of a process set, into its target; the two may be the same.

    Args:
        tensors: of any shapes, equal on all ranks.
        targets: of the same shapes and types.
        call: name and process set.
        scaling: reduction and factors.

    Raises: HorovodInternalError; ValueError for Adasum and for a type that cannot travel.
    """
    reduce_all([(tensors, targets, call)], scaling)


def reduce_all(
    calls: Sequence[tuple[Sequence[mx.nd.NDArray], Sequence[mx.nd.NDArray], Call]], scaling: Scaling
) -> None:
    """Run several all-reduces at once, in the order in which ranks are ready for them.

    Args:
        calls: arrays, targets and call of each, as `all_reduce`; all in one process set.
        scaling: of all.

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
            taken, factor = _divided(scaling, source.dtype, call.number)
            description = Description(
                Verb.ALLREDUCE,
                memory.DTYPES[source.dtype.name],
                source.shape,
                taken,
                group=group,
                group_size=group_size,
                place=memory.place_of(tensor),
            )
            request = Request(
                name,
                description,
                memory.buffer(_scaled(source, scaling.before)),
                memory.buffer(result),
                is_nameless=is_nameless,
                finish=_scaling_in_place(result, factor),
            )
            requests.append(request)
            written.append((target, result))
    _run(requests, calls[0][2] if calls else None)
    for target, result in written:
        _write_back(target, result)


def all_gather(tensors: Sequence[mx.nd.NDArray], call: Call) -> list[mx.nd.NDArray]:
    """Collect each array of all ranks behind each other along their first axis; lengths of it may differ by rank.

    Raises: HorovodInternalError.
    """
    base, names, is_nameless = call.named("allgather", len(tensors))
    group, group_size = call.group(base, len(tensors))
    requests, rooms = [], []
    for name, tensor in zip(names, tensors, strict=True):
        rows = memory.view(tensor)
        description = Description(
            Verb.ALLGATHER,
            memory.DTYPES[rows.dtype.name],
            rows.shape[1:],
            group=group,
            group_size=group_size,
            place=memory.place_of(tensor),
        )
        room = _Room(rows)
        requests.append(_rows_request(name, description, rows, room, is_nameless))
        rooms.append(room)
    _run(requests, call)
    return [memory.new_like(room.result(), tensor) for room, tensor in zip(rooms, tensors, strict=True)]


def broadcast(tensor: mx.nd.NDArray, target: mx.nd.NDArray, root_rank: int, call: Call) -> None:
    """Write the array of one rank into the target of all; the two may be the same.

    Args:
        tensor: of one shape and type on all ranks.
        target: of the same shape and type.
        root_rank: rank among all ranks, also where a process set is given.
        call: name and process set.

    Raises: HorovodInternalError, also for a root that is not in the process set.
    """
    ranks = world.ranks_of(call.number)
    if root_rank not in ranks:
        raise HorovodInternalError(f"broadcast: root rank {root_rank} is not among the ranks {list(ranks)}")
    _, (name,), is_nameless = call.named("broadcast", 1)
    source, result = memory.view(tensor), memory.view(target)
    description = Description(
        Verb.BROADCAST,
        memory.DTYPES[source.dtype.name],
        source.shape,
        root=ranks.index(root_rank),
        place=memory.place_of(tensor),
    )
    request = Request(name, description, memory.buffer(source), memory.buffer(result), is_nameless=is_nameless)
    _run([request], call)
    _write_back(target, result)


def all_to_all(tensor: mx.nd.NDArray, splits: mx.nd.NDArray | None, call: Call) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Give each rank its rows; return the rows received in rank order, and how many came from each rank.

    Args:
        tensor: with a first axis.
        splits: rows for each rank, whole numbers of 32 bits, shape [ranks]; None cuts the first axis equally.
        call: name and process set.

    Raises: ValueError for splits of another type; HorovodInternalError, also for splits that do not fit.
    """
    rows = memory.view(tensor)
    counts = _counts_of(rows, splits, len(world.ranks_of(call.number)))
    _, (name,), is_nameless = call.named("alltoall", 1)
    room = _Room(rows)
    description = Description(
        Verb.ALLTOALL, memory.DTYPES[rows.dtype.name], rows.shape[1:], place=memory.place_of(tensor)
    )
    request = _rows_request(name, description, rows, room, is_nameless)
    request.splits, request.on_splits = counts, room.take_counts
    _run([request], call)
    return memory.new_like(room.result(), tensor), mx.nd.array(room.counts, dtype="int32")


def reduce_scatter(tensors: Sequence[mx.nd.NDArray], call: Call, scaling: Scaling) -> list[mx.nd.NDArray]:
    """Reduce each array and return this rank's rows of it; the first ranks get one row more where rows do not divide.

    Args:
        tensors: with a first axis, of shapes equal on all ranks.
        call: name and process set.
        scaling: reduction and factors.

    Raises: HorovodInternalError.
    """
    base, names, is_nameless = call.named("reducescatter", len(tensors))
    group, group_size = call.group(base, len(tensors))
    requests, rooms = [], []
    for name, tensor in zip(names, tensors, strict=True):
        rows = memory.view(tensor)
        taken, factor = _divided(scaling, rows.dtype, call.number)
        description = Description(
            Verb.REDUCESCATTER,
            memory.DTYPES[rows.dtype.name],
            rows.shape,
            taken,
            group=group,
            group_size=group_size,
            place=memory.place_of(tensor),
        )
        room = _Room(rows, factor)
        requests.append(_rows_request(name, description, _scaled(rows, scaling.before), room, is_nameless))
        rooms.append(room)
    _run(requests, call)
    return [memory.new_like(room.result(), tensor) for room, tensor in zip(rooms, tensors, strict=True)]


def _run(requests: list[Request], call: Call | None) -> None:
    """Submit requests, and wait until all have ended."""
    if requests and call is not None:
        engine = world.engine(call.number)
        engine.submit(requests, wakes_thread=False)
        engine.wait([request.handle for request in requests])


def _write_back(target: mx.nd.NDArray, result: np.ndarray) -> None:
    """Copy a result to the GPU; memory of the host was written where it lies."""
    if memory.place_of(target) == "gpu":
        target[:] = result


class _Room:
    """Memory of a result whose number of rows is known only when the operation runs."""

    def __init__(self, like: np.ndarray, factor: float = 1.0) -> None:
        self._like = like
        self._factor = factor
        self._memory: np.ndarray | None = None
        self.counts: list[int] = []

    def allocate(self, rows: int) -> Buffer:
        """Return memory for so many rows."""
        self._memory = np.empty((rows, *self._like.shape[1:]), self._like.dtype)
        found: Buffer = memory.buffer(self._memory)
        return found

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
        memory.buffer(rows),
        allocate=room.allocate,
        row_elements=int(np.prod(rows.shape[1:], dtype=np.int64)),
        rows=rows.shape[0],
        is_nameless=is_nameless,
        finish=room.finish,
    )


def _counts_of(rows: np.ndarray, splits: mx.nd.NDArray | None, num_ranks: int) -> list[int]:
    if splits is None:
        if rows.shape[0] % num_ranks:
            raise HorovodInternalError(
                f"alltoall without splits: {rows.shape[0]} rows are no multiple of {num_ranks} ranks"
            )
        return [rows.shape[0] // num_ranks] * num_ranks
    if np.dtype(splits.dtype) != np.int32:
        raise ValueError(f"splits are whole numbers of 32 bits; got {np.dtype(splits.dtype).name}")
    counts = [int(count) for count in splits.asnumpy()]
    if len(counts) != num_ranks or min(counts) < 0 or sum(counts) > rows.shape[0]:
        raise HorovodInternalError(
            f"splits {counts}: expected {num_ranks} counts of 0 or more, together at most {rows.shape[0]} rows"
        )
    return counts


def _divided(scaling: Scaling, dtype: np.dtype, process_set: int) -> tuple[Reduction, float]:
    """Return the reduction that runs and the factor after it: averages of whole numbers are sums, divided later."""
    if scaling.op is Reduction.AVERAGE and dtype.kind in "iub":
        return Reduction.SUM, scaling.after / len(world.ranks_of(process_set))
    return scaling.op, scaling.after


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """Return the array times a factor, rounded to zero where it holds whole numbers; itself for 1."""
    if factor == 1.0:
        return array
    if array.dtype.kind in "iub":
        return np.trunc(array.astype(np.float64) * factor).astype(array.dtype)
    wide = np.float32 if array.dtype.itemsize == _TWO_BYTES else array.dtype.type
    return np.asarray((array.astype(wide) * wide(factor)).astype(array.dtype))


def _scaling_in_place(array: np.ndarray, factor: float) -> Callable[[], None] | None:
    if factor == 1.0:
        return None

    def scale() -> None:
        array[...] = _scaled(array, factor)

    return scale
