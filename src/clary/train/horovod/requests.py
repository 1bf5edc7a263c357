"""Requests: one named tensor and the operation on it, as a face of a framework submits it.

Where: faces make a `Request`, `engine` takes it, `operations` runs it. Memory is on the host and contiguous; a face
copies tensors that are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from clary.train._native.interface import Dtype
from clary.train.collective.buffers import Buffer


class Verb(IntEnum):
    """Operations that ranks agree on."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    ADD_PROCESS_SET = 6
    REMOVE_PROCESS_SET = 7


class Reduction(IntEnum):
    """Reductions, numbered as Horovod numbers them."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


@dataclass(frozen=True, slots=True)
class Description:
    """The part of a request that all ranks must agree on.

    Args:
        shape: of the tensor; without the first length if that may differ by rank (allgather, alltoall).
        root: rank that sends, of a broadcast.
        group: name of the group that is ready only as a whole; "" for none.
        group_size: requests of the group.
        place: "cpu" or "gpu", where the tensor lies on each rank.
        details: further numbers that must be equal, as the ranks of a new process set.
    """

    verb: Verb
    dtype: Dtype = Dtype.UINT8
    shape: tuple[int, ...] = ()
    reduction: Reduction = Reduction.SUM
    root: int = 0
    group: str = ""
    group_size: int = 0
    place: str = "cpu"
    details: tuple[int, ...] = ()

    @property
    def num_elements(self) -> int:
        """Elements of a tensor of `shape`."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def num_bytes(self) -> int:
        """Bytes of a tensor of `shape`."""
        return self.num_elements * self.dtype.element_bytes


class Handle:
    """The outcome of one request. `engine.Engine.wait` waits for it."""

    __slots__ = ("error", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.error: Exception | None = None


Allocate = Callable[[int], Buffer]


@dataclass(slots=True)
class Request:
    """One tensor of one rank.

    Args:
        name: equal on all ranks; no two requests under way may share it.
        source: the tensor's memory; None for a barrier.
        target: memory of the result, if its length is known before; it may be `source`.
        allocate: returns memory for a result of so many rows of the first axis; used if `target` is None.
        row_elements: elements of one row of the first axis, of allgather and alltoall.
        rows: length of the first axis.
        splits: rows for each rank, of an alltoall.
        on_splits: called with the rows received from each rank, of an alltoall.
        is_nameless: whether the name was made for this one call, and will not be used again.
        prepare: called by the thread that runs the request, before `source` is read; copies from a device.
        finish: called by that thread after `target` was written; scales, or copies to a device.
    """

    name: str
    description: Description
    source: Buffer | None = None
    target: Buffer | None = None
    allocate: Allocate | None = None
    row_elements: int = 1
    rows: int = 0
    splits: Sequence[int] = ()
    on_splits: Callable[[list[int]], None] | None = None
    is_nameless: bool = False
    prepare: Callable[[], None] | None = None
    finish: Callable[[], None] | None = None
    handle: Handle = field(default_factory=Handle)
