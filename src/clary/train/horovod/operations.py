"""Operations on ready tensors over a group: the same calls in the same order on all ranks.

Where: `engine` calls `run` with batches that `fusion.plan` made. A rank that has joined takes part with zeros.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence

from clary.train._native.interface import Dtype, ReduceOp
from clary.train.collective.buffers import Buffer
from clary.train.collective.communicator import Communicator
from clary.train.horovod.adasum import reduce_adasum
from clary.train.horovod.errors import HorovodInternalError
from clary.train.horovod.readiness import Ready
from clary.train.horovod.requests import Description, Reduction, Request, Verb

_REDUCE_OPS: Mapping[Reduction, ReduceOp] = {
    Reduction.AVERAGE: ReduceOp.AVG,
    Reduction.SUM: ReduceOp.SUM,
    Reduction.MIN: ReduceOp.MIN,
    Reduction.MAX: ReduceOp.MAX,
    Reduction.PRODUCT: ReduceOp.PRODUCT,
}
_ALIGNMENT = 64  # bytes; alignment of the offset of each tensor in the common memory


class Operations:
    """Runs batches over one group. Not thread-safe.

    All methods raise CollectiveError if the group fails; the group is unusable from then on.
    """

    def __init__(self, group: Communicator) -> None:
        self._group = group
        self._common: Buffer | None = None
        self._common_bytes = bytearray()

    def run(self, batch: Sequence[Ready], requests: Sequence[Request | None]) -> None:
        """Run one batch.

        Args:
            requests: this rank's requests, in the order of `batch`; None for each tensor that it did not submit
                (`join`).

        Raises: HorovodInternalError if this rank's memory has the wrong size, for example if a framework module
        allocated too little.
        """
        for request in requests:
            if request is not None and request.prepare is not None:
                request.prepare()
        if len(batch) > 1:
            self._run_fused(batch, requests)
        else:
            self._run_one(batch[0].description, requests[0])
        for request in requests:
            if request is not None and request.finish is not None:
                request.finish()

    def _run_one(self, what: Description, request: Request | None) -> None:
        if what.verb is Verb.BARRIER:
            self._group.barrier()
        elif what.verb is Verb.ALLREDUCE:
            self._all_reduce(what, request)
        elif request is None:
            raise HorovodInternalError(f"{what.verb.name.lower()} cannot run on a rank that has joined")
        elif what.verb is Verb.ALLGATHER:
            self._all_gather(request)
        elif what.verb is Verb.BROADCAST:
            self._broadcast(what, request)
        elif what.verb is Verb.ALLTOALL:
            self._all_to_all(request)
        elif what.verb is Verb.REDUCESCATTER:
            self._reduce_scatter(what, request)
        else:
            raise HorovodInternalError(f"no way to run {what.verb.name.lower()}")

    # Reductions

    def _all_reduce(self, what: Description, request: Request | None) -> None:
        if what.num_elements == 0:
            return
        if request is None:
            source = target = _zeros(what)
        else:
            source, target = _source(request), _target(request, what.num_elements)
        if what.reduction is Reduction.ADASUM:
            _copy(source, target)
            reduce_adasum(self._group, target)
            return
        is_in_place = source.address == target.address
        self._group.all_reduce(source, None if is_in_place else target, op=_REDUCE_OPS[what.reduction])

    def _run_fused(self, batch: Sequence[Ready], requests: Sequence[Request | None]) -> None:
        """Reduce several small tensors in one call, copied one after another into common memory."""
        what = batch[0].description
        places, end = [], 0
        for one in batch:
            places.append(end)
            end += -(-one.description.num_bytes // _ALIGNMENT) * _ALIGNMENT
        common = self._room(end, what.dtype)
        for one, request, place in zip(batch, requests, places, strict=True):
            num_bytes = one.description.num_bytes
            if request is None:
                ctypes.memset(common.address + place, 0, num_bytes)
            else:
                ctypes.memmove(common.address + place, _source(request).address, num_bytes)
        self._group.all_reduce(common, op=_REDUCE_OPS[what.reduction])
        for one, request, place in zip(batch, requests, places, strict=True):
            if request is not None:
                target = _target(request, one.description.num_elements)
                ctypes.memmove(target.address, common.address + place, one.description.num_bytes)

    def _room(self, num_bytes: int, dtype: Dtype) -> Buffer:
        """Return a buffer of `num_bytes`; its memory is kept and used again by the next batch."""
        if len(self._common_bytes) < num_bytes + _ALIGNMENT:
            self._common_bytes = bytearray(num_bytes + _ALIGNMENT)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._common_bytes))
        start += -start % _ALIGNMENT
        return Buffer(start, num_bytes // dtype.element_bytes, dtype, True, self._common_bytes)

    def _reduce_scatter(self, what: Description, request: Request) -> None:
        """Reduce, and keep this rank's rows; if rows do not divide evenly, the first ranks have one row more."""
        size, rank = self._group.size, self._group.rank
        rows, over = divmod(what.shape[0], size)
        row_elements = what.num_elements // what.shape[0] if what.shape[0] else 0
        mine = rows + (rank < over)
        target = _room_of(request, mine, mine * row_elements)
        source, op = _source(request), _REDUCE_OPS[what.reduction]
        if not what.num_elements:
            return
        if not over:
            self._group.reduce_scatter(source, target, op=op)
            return
        whole = self._room(source.num_bytes, what.dtype)
        self._group.all_reduce(source, whole, op=op)
        first = (rank * rows + min(rank, over)) * row_elements * what.dtype.element_bytes
        ctypes.memmove(target.address, whole.address + first, target.num_bytes)

    # Exchanges

    def _all_gather(self, request: Request) -> None:
        rows = self._exchange_counts(request.rows)
        source = _source(request)
        target = _room_of(request, sum(rows), sum(rows) * request.row_elements)
        if not target.num_elements:
            return
        if len(set(rows)) == 1:
            self._group.all_gather(source, target)
            return
        parts = _cut(target, [count * request.row_elements for count in rows])
        self._group.all_to_all([source] * self._group.size, parts)

    def _broadcast(self, what: Description, request: Request) -> None:
        if what.num_elements == 0:
            return
        target = _target(request, what.num_elements)
        if self._group.rank == what.root:
            _copy(_source(request), target)
        self._group.broadcast(target, root=what.root)

    def _all_to_all(self, request: Request) -> None:
        sent = array("q", request.splits)
        received = array("q", bytes(8 * self._group.size))
        self._group.all_to_all(sent, received)
        _check_counts(received, "splits")
        if request.on_splits is not None:
            request.on_splits(list(received))
        target = _room_of(request, sum(received), sum(received) * request.row_elements)
        # rows beyond the sum of the splits are not sent
        (source,) = _cut(_source(request), [sum(sent) * request.row_elements])
        self._group.all_to_all(
            source,
            target,
            send_counts=[count * request.row_elements for count in sent],
            receive_counts=[count * request.row_elements for count in received],
        )

    def _exchange_counts(self, count: int) -> list[int]:
        counts = array("q", bytes(8 * self._group.size))
        self._group.all_gather(array("q", [count]), counts)
        _check_counts(counts, "rows")
        return list(counts)


def _check_counts(counts: Sequence[int], what: str) -> None:
    """Refuse negative numbers, which would cut memory wrongly. Raises: HorovodInternalError."""
    for rank, count in enumerate(counts):
        if count < 0:
            raise HorovodInternalError(f"rank {rank} of this process set announces {count} {what}; expected 0 or more")


def _source(request: Request) -> Buffer:
    if request.source is None:
        raise HorovodInternalError(f"request {request.name!r} has no tensor")
    return request.source


def _target(request: Request, num_elements: int) -> Buffer:
    """Return the request's memory for a result of known length. Raises: HorovodInternalError for another length."""
    target = request.target
    if target is None or target.num_elements != num_elements:
        held = "no memory" if target is None else f"memory of {target.num_elements} elements"
        raise HorovodInternalError(f"request {request.name!r} brought {held} for a result of {num_elements} elements")
    return target


def _room_of(request: Request, rows: int, num_elements: int) -> Buffer:
    """Have the framework module allocate memory for a result of `rows` rows."""
    if request.allocate is None:
        return _target(request, num_elements)
    target = request.allocate(rows)
    if target.num_elements != num_elements:
        raise HorovodInternalError(
            f"request {request.name!r} allocated {target.num_elements} elements for a result of {num_elements}"
        )
    return target


def _zeros(what: Description) -> Buffer:
    memory = bytearray(what.num_bytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return Buffer(address, what.num_elements, what.dtype, True, memory)


def _copy(source: Buffer, target: Buffer) -> None:
    if source.address != target.address:
        ctypes.memmove(target.address, source.address, source.num_bytes)


def _cut(whole: Buffer, counts: Sequence[int]) -> list[Buffer]:
    """Cut a buffer into consecutive parts of `counts` elements."""
    parts, place = [], whole.address
    for count in counts:
        parts.append(Buffer(place, count, whole.dtype, True, whole.owner))
        place += count * whole.dtype.element_bytes
    return parts
