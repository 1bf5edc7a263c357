"""Asynchronous operations on tensors of torch, and the functions that wait for them.

Each operation takes a tensor of any shape and a `name` that is equal on all ranks (if None, a name is made up, and all
ranks must call the same operations in the same order). The result belongs to the operation until `synchronize` has
returned it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from horovod.common.basics import size
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import handle_average, num_rank_is_power_2
from horovod.torch import memory

from clary.train._native.interface import Dtype
from clary.train.collective.buffers import Buffer
from clary.train.horovod import world
from clary.train.horovod.requests import Description, Handle, Reduction, Request, Verb

Average, Sum, Adasum, Min, Max, Product = Reduction
_numbers = itertools.count()  # numbers of handles
_pending: dict[int, _Pending] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class _Pending:
    """The operations of one call that are in progress.

    Args:
        results: returns the results for `synchronize`, once all operations have ended.
    """

    process_set: int
    handles: Sequence[Handle]
    results: Callable[[], Any]


# All-reduce


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to reduce a tensor over all ranks; return a handle.

    Args:
        tensor: of one shape and type on all ranks; it is not changed.
        average: argument of Horovod before 0.19; use `op`.
        name: equal on all ranks.
        op: Average (if None), Sum, Adasum, Min, Max or Product.
        prescale_factor: multiplies each rank's tensor first.
        postscale_factor: multiplies the result.
        process_set: ranks that take part.
    """
    return _reduce([tensor], None, average, name, op, (prescale_factor, postscale_factor), process_set, is_group=False)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to reduce a tensor in place; return a handle.

    Args:
        tensor: of one shape and type on all ranks; it holds the result once `synchronize` has returned.
        average, name, op, prescale_factor, postscale_factor, process_set: as for `allreduce_async`.
    """
    scales = (prescale_factor, postscale_factor)
    return _reduce([tensor], [tensor], average, name, op, scales, process_set, is_group=False)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to reduce several tensors as one group; return one handle.

    Args: as `allreduce_async`.
    """
    return _reduce(tensors, None, average, name, op, (prescale_factor, postscale_factor), process_set, is_group=True)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to reduce several tensors in place as one group; return one handle.

    Args: as `allreduce_async`.
    """
    scales = (prescale_factor, postscale_factor)
    return _reduce(tensors, tensors, average, name, op, scales, process_set, is_group=True)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to reduce a sparse tensor by gathering indices and values; return a function that waits for the result.

    Args:
        tensor: sparse, of one shape and type on all ranks; the result has that shape, and is sparse too.
        name, process_set: as for `allreduce_async`.
        op: Average or Sum.

    Raises: ValueError for another `op`.
    """
    if op not in (Average, Sum):
        raise ValueError(f"sparse tensors are reduced by Average or Sum, got {op!r}")
    entries = tensor.coalesce() if not tensor.is_coalesced() else tensor
    indices = allgather_async(
        entries._indices().transpose(0, 1).contiguous(), f"{name}.indices" if name else None, process_set
    )
    values = allgather_async(entries._values().contiguous(), f"{name}.values" if name else None, process_set)

    def result() -> torch.Tensor:
        all_values, all_indices = synchronize(values), synchronize(indices)
        if op == Average:
            all_values = all_values / (process_set.size() or 1)
        if not all_indices.numel():
            return torch.sparse_coo_tensor(size=tensor.size(), dtype=tensor.dtype)
        return torch.sparse_coo_tensor(all_indices.transpose(0, 1), all_values, tensor.size())

    return result


def _reduce(
    tensors: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor] | None,
    average: bool | None,
    name: str | None,
    op: int | None,
    scales: tuple[float, float],
    process_set: ProcessSet,
    *,
    is_group: bool,
) -> int:
    reduction = handle_average(op, average)
    number = _number_of(process_set)
    if reduction is Adasum:
        _check_adasum(process_set)
    if targets is None:
        targets = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]
    base, is_nameless = _name("allreduce", name, number)
    requests = []
    for place, (tensor, target) in enumerate(zip(tensors, targets, strict=True)):
        full = f"{base}_{place + 1}of{len(tensors)}" if is_group else base
        dtype = memory.check(tensor)
        memory.check(target)
        taken, after = _divided(reduction, dtype, scales[1], number)
        description = Description(
            Verb.ALLREDUCE,
            dtype,
            tuple(tensor.shape),
            taken,
            group=base if is_group else "",
            group_size=len(tensors) if is_group else 0,
            place=memory.place_of(tensor),
        )
        source = _scaled(tensor, scales[0])
        requests.append(_request(full, description, source, target, after, is_nameless))
    results = tuple(targets) if is_group else targets[0]
    return _submit(requests, number, lambda: results)


def _check_adasum(process_set: ProcessSet) -> None:
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if not num_rank_is_power_2(size()):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")


def _divided(reduction: Reduction, dtype: Dtype, factor: float, number: int) -> tuple[Reduction, float]:
    """Return the reduction to run and the factor after it: an average of integers is a sum, divided afterwards."""
    if reduction is Average and not dtype.is_floating:
        return Sum, factor / len(world.ranks_of(number))
    return reduction, factor


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Return the tensor times a factor, for integer types rounded towards zero; the tensor itself for factor 1."""
    if factor == 1.0:
        return tensor
    with torch.no_grad():
        if tensor.is_floating_point():
            return tensor * factor
        return (tensor.double() * factor).trunc().to(tensor.dtype)


# All-gather, broadcast, all-to-all, reduce-scatter


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begin to concatenate the tensors of all ranks along their first axis; return a handle.

    Args:
        tensor: of any shape; the length of the first axis may differ by rank.
        name, process_set: as for `allreduce_async`.
    """
    return _gather([tensor], name, process_set, is_group=False)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin to gather several tensors as one group; return one handle.

    Args: as `allgather_async`.
    """
    return _gather(tensors, name, process_set, is_group=True)


def _gather(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, *, is_group: bool) -> int:
    number = _number_of(process_set)
    base, is_nameless = _name("allgather", name, number)
    requests, rooms = [], []
    for place, tensor in enumerate(tensors):
        full = f"{base}_{place + 1}of{len(tensors)}" if is_group else base
        dtype = memory.check(tensor)
        rows = tensor if tensor.dim() else tensor.reshape(1)
        description = Description(
            Verb.ALLGATHER,
            dtype,
            tuple(rows.shape[1:]),
            group=base if is_group else "",
            group_size=len(tensors) if is_group else 0,
            place=memory.place_of(tensor),
        )
        room = _Room(rows)
        requests.append(_rows_request(full, description, rows, room, is_nameless))
        rooms.append(room)
    return _submit(requests, number, lambda: tuple(room.result() for room in rooms) if is_group else rooms[0].result())


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin to broadcast the tensor of one rank to all ranks; return a handle.

    Args:
        tensor: of one shape and type on all ranks; it is not changed.
        root_rank: rank among all ranks, even if a process set is given.
        name, process_set: as for `allreduce_async`.
    """
    target = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    return _broadcast(tensor, target, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin to overwrite the tensor of all ranks with the tensor of one rank; return a handle.

    Args:
        tensor: of one shape and type on all ranks; it holds the result once `synchronize` has returned.
        root_rank, name, process_set: as for `broadcast_async`.
    """
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def _broadcast(
    tensor: torch.Tensor, target: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> int:
    number = _number_of(process_set)
    ranks = world.ranks_of(number)
    if root_rank not in ranks:
        raise HorovodInternalError(f"broadcast: root rank {root_rank} is not among the ranks {list(ranks)}")
    full, is_nameless = _name("broadcast", name, number)
    description = Description(
        Verb.BROADCAST,
        memory.check(tensor),
        tuple(tensor.shape),
        root=ranks.index(root_rank),
        place=memory.place_of(tensor),
    )
    request = _request(full, description, tensor, target, 1.0, is_nameless)
    return _submit([request], number, lambda: target)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to send each rank its rows of the tensor; return a handle.

    `synchronize` returns the received rows in rank order, and the number of rows from each rank as a tensor of int32.

    Args:
        tensor: of any shape but a scalar.
        splits: rows for each rank, a tensor or a sequence of integers; None cuts the first axis equally.
        name, process_set: as for `allreduce_async`.

    Raises: ValueError for splits that do not fit.
    """
    number = _number_of(process_set)
    num_ranks = len(world.ranks_of(number))
    dtype = memory.check(tensor)
    counts = _counts_of(tensor, splits, num_ranks)
    full, is_nameless = _name("alltoall", name, number)
    description = Description(Verb.ALLTOALL, dtype, tuple(tensor.shape[1:]), place=memory.place_of(tensor))
    room = _Room(tensor)
    request = _rows_request(full, description, tensor, room, is_nameless)
    request.splits, request.on_splits = counts, room.take_counts
    device = splits.device if isinstance(splits, torch.Tensor) else torch.device("cpu")
    return _submit(
        [request],
        number,
        lambda: (room.result(), torch.tensor(room.counts, dtype=torch.int32, device=device)),
    )


def _counts_of(tensor: torch.Tensor, splits: Any, num_ranks: int) -> list[int]:
    if not tensor.dim():
        raise ValueError("alltoall takes a tensor with a first axis; got a scalar")
    if splits is None or (hasattr(splits, "__len__") and len(splits) == 0):
        if tensor.shape[0] % num_ranks:
            raise ValueError(f"alltoall without splits: {tensor.shape[0]} rows are no multiple of {num_ranks} ranks")
        return [tensor.shape[0] // num_ranks] * num_ranks
    if isinstance(splits, torch.Tensor):
        if splits.dtype.is_floating_point:
            raise ValueError(f"splits are whole numbers; got a tensor of {splits.dtype}")
        splits = splits.tolist()
    counts = [int(count) for count in splits]
    if len(counts) != num_ranks or min(counts) < 0 or sum(counts) > tensor.shape[0]:
        raise ValueError(
            f"splits {counts}: expected {num_ranks} counts of 0 or more, together at most {tensor.shape[0]} rows"
        )
    return counts


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin to reduce a tensor and give each rank its rows of the result; return a handle.

    Args:
        tensor: of one shape on all ranks; the first ranks get one row more if rows do not divide evenly.
        name, process_set, prescale_factor, postscale_factor: as for `allreduce_async`.
        op: Average, Sum, Min, Max or Product.
    """
    return _reduce_scatter([tensor], name, op, process_set, (prescale_factor, postscale_factor), is_group=False)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin to reduce and scatter several tensors as one group; return one handle.

    Args: as `reducescatter_async`.
    """
    return _reduce_scatter(tensors, name, op, process_set, (prescale_factor, postscale_factor), is_group=True)


def _reduce_scatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    scales: tuple[float, float],
    *,
    is_group: bool,
) -> int:
    number = _number_of(process_set)
    base, is_nameless = _name("reducescatter", name, number)
    requests, rooms = [], []
    for place, tensor in enumerate(tensors):
        full = f"{base}_{place + 1}of{len(tensors)}" if is_group else base
        dtype = memory.check(tensor)
        if not tensor.dim():
            raise HorovodInternalError("reducescatter takes a tensor with a first axis; got a scalar")
        if op == Adasum:
            raise HorovodInternalError("reducescatter does not support Adasum")
        taken, after = _divided(Reduction(op), dtype, scales[1], number)
        description = Description(
            Verb.REDUCESCATTER,
            dtype,
            tuple(tensor.shape),
            taken,
            group=base if is_group else "",
            group_size=len(tensors) if is_group else 0,
            place=memory.place_of(tensor),
        )
        room = _Room(tensor, factor=after)
        requests.append(_rows_request(full, description, _scaled(tensor, scales[0]), room, is_nameless))
        rooms.append(room)
    return _submit(requests, number, lambda: tuple(room.result() for room in rooms) if is_group else rooms[0].result())


# Waiting


def poll(handle: int) -> bool:
    """Return whether `synchronize` would return at once."""
    pending = _pending.get(handle)
    return pending is None or all(one.is_done for one in pending.handles)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; None for a handle whose result was already returned.

    Raises: HorovodInternalError with the reason if the operation failed.
    """
    with _lock:
        pending = _pending.pop(handle, None)
    if pending is None:
        return None
    if not all(one.is_done for one in pending.handles):
        world.engine(pending.process_set).wait(pending.handles)
    for one in pending.handles:
        if one.error is not None:
            raise one.error
    return pending.results()


def join(device: int = -1) -> int:
    """Join other ranks' all-reduces with zeros until all ranks have joined; return the rank that joined last.

    Args:
        device: has no effect; the zeros are in host memory.
    """
    return world.engine().join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of a process set has called this function."""
    number = _number_of(process_set)
    name, _ = _name("barrier", None, number)
    synchronize(_submit([Request(name, Description(Verb.BARRIER), is_nameless=True)], number, lambda: None))


# Requests


class _Room:
    """Memory of a result whose number of rows is known only when the operation runs.

    Args:
        like: tensor with the type and device of the result, and with its lengths after the first axis.
        factor: multiplies the result.
    """

    def __init__(self, like: torch.Tensor, *, factor: float = 1.0) -> None:
        self._like = like
        self._factor = factor
        self._host: torch.Tensor | None = None
        self._result: torch.Tensor | None = None
        self.counts: list[int] = []

    def allocate(self, rows: int) -> Buffer:
        """Return memory for a number of rows."""
        self._host = torch.empty((rows, *self._like.shape[1:]), dtype=self._like.dtype)
        found: Buffer = memory.buffer(self._host)
        return found

    def take_counts(self, counts: list[int]) -> None:
        """Keep the number of rows that each rank sends."""
        self.counts = counts

    def finish(self) -> None:
        """Scale the result and move it to the tensor's device."""
        if self._host is not None:
            self._result = _scaled(self._host, self._factor).to(self._like.device)

    def result(self) -> torch.Tensor:
        """Return the result, once the operation has ended."""
        if self._result is None:
            raise HorovodInternalError("the operation has left no result")
        return self._result


def _request(
    name: str,
    description: Description,
    tensor: torch.Tensor,
    target: torch.Tensor,
    factor: float,
    is_nameless: bool,
) -> Request:
    """Return a request whose result has the shape of `target`."""
    prepare: Callable[[], None] | None = None
    from_host, to_host = tensor, target
    if memory.place_of(tensor) != "cpu":
        from_host = memory.host_copy(tensor)
        prepare = memory.copy_down(tensor, from_host)
    if memory.place_of(target) != "cpu":
        to_host = from_host

    def finish() -> None:
        with torch.no_grad():
            if factor != 1.0:
                to_host.copy_(_scaled(to_host, factor))
            if to_host is not target:
                memory.copy_up(to_host, target)

    has_end = factor != 1.0 or to_host is not target
    return Request(
        name,
        description,
        memory.buffer(from_host),
        memory.buffer(to_host),
        is_nameless=is_nameless,
        prepare=prepare,
        finish=finish if has_end else None,
    )


def _rows_request(name: str, description: Description, tensor: torch.Tensor, room: _Room, is_nameless: bool) -> Request:
    """Return a request whose result has a number of rows that is known only when the operation runs."""
    prepare: Callable[[], None] | None = None
    source = tensor
    if memory.place_of(tensor) != "cpu":
        source = memory.host_copy(tensor)
        prepare = memory.copy_down(tensor, source)
    row_elements = 1
    for length in tensor.shape[1:]:
        row_elements *= length
    return Request(
        name,
        description,
        memory.buffer(source),
        allocate=room.allocate,
        row_elements=row_elements,
        rows=tensor.shape[0],
        is_nameless=is_nameless,
        prepare=prepare,
        finish=room.finish,
    )


def _submit(requests: Sequence[Request], number: int, results: Callable[[], Any]) -> int:
    world.engine(number).submit(requests)
    handle = next(_numbers)
    _pending[handle] = _Pending(number, [request.handle for request in requests], results)
    return handle


def _number_of(process_set: ProcessSet) -> int:
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"{process_set} was not added: pass it to init or add_process_set first")
    return int(number)


def _name(verb: str, name: str | None, number: int) -> tuple[str, bool]:
    """Return the name of an operation, equal on all ranks, and whether the name was made up."""
    return (world.engine(number).make_name(verb), True) if name is None else (f"{verb}.{name}", False)
