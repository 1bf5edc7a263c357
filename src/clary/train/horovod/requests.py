"""Requests: one named tensor and its operation, as a framework module like `horovod.torch` submits it.

Where: framework modules make a `Request`, `engine` takes it, `operations` runs it. Memory is on the host and
contiguous; a framework module copies tensors whose memory is not.
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
        shape: shape of the tensor; without the first dimension if its length may differ by rank (allgather, alltoall).
        root: rank that sends, for a broadcast.
        group: name of a group whose tensors become ready only together; "" for none.
        group_size: number of requests in the group.
        place: "cpu" or "gpu": the device of the tensor on each rank.
        details: further numbers that must be equal, such as the ranks of a new process set.
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
        """Number of elements of a tensor of `shape`."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def num_bytes(self) -> int:
        """Number of bytes of a tensor of `shape`."""
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
        target: memory of the result, if its length is known in advance; may be `source`.
        allocate: returns memory for a result, given its number of rows along the first axis; allgather, alltoall and
            reducescatter use it instead of `target`.
        row_elements: elements of one row of the first axis, for allgather and alltoall.
        rows: length of the first axis.
        splits: rows for each rank, for an alltoall.
        on_splits: called with the number of rows received from each rank, for an alltoall.
        is_nameless: whether the name was generated for this one call.
        prepare: called by the thread that runs the request, before it reads `source`; for example, copies from a
            device.
        finish: called by the same thread after it has written `target`; for example, scales, or copies to a device.
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
