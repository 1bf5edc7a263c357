"""The interface of a core, which the compiled core and the reference core implement.

Where: `collective.communicator` and the adapters call a core; `collective.bootstrap` makes its connections.
Buffers are named by address. A core keeps no memory alive: the caller holds the buffer until the operation has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

ANY_RANK = -1


class Dtype(IntEnum):
    """Element types, numbered as in native/include/clary/collectives.h."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    UINT8 = 8
    BOOL = 9

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ELEMENT_BYTES[self]

    @property
    def is_floating(self) -> bool:
        """Whether the type has fractions."""
        return self <= Dtype.BFLOAT16


ELEMENT_BYTES = (4, 8, 2, 2, 1, 2, 4, 8, 1, 1)  # indexed by Dtype


class ReduceOp(IntEnum):
    """Reductions. AVG is defined on floating types, BAND, BOR and BXOR on integers and bool."""

    SUM = 0
    AVG = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BAND = 5
    BOR = 6
    BXOR = 7

    def is_defined_on(self, dtype: Dtype) -> bool:
        """Whether this reduction is defined on elements of `dtype`."""
        if self is ReduceOp.AVG:
            return dtype.is_floating
        return self < ReduceOp.BAND or not dtype.is_floating


class Code(IntEnum):
    """The outcome of an operation."""

    OK = 0
    INVALID = 1
    TIMEOUT = 2
    PEER_LOST = 3
    ORDER_MISMATCH = 4
    CLOSED = 5
    SYSTEM = 6


@dataclass(frozen=True)
class GroupConnections:
    """The hosts of a group's ranks and the connections between them. A core owns the descriptors from its creation on.

    Args:
        host_of_rank: index of each rank's host, numbered in order of first appearance by rank.
        host_names: name of each host, for messages.
        segment_fd: zeroed memory that all ranks of this host map; -1 if this rank is alone on its host.
        lane_fds: connected stream sockets by rank; -1 for this rank and for ranks of the same host.
        side_fds: connected stream sockets by rank; -1 for this rank.
        link_latency_s, link_bytes_per_s: the link between hosts, for the choice of algorithms; equal on all ranks.
        algorithm: "" lets the cost model choose.
    """

    name: str
    rank: int
    size: int
    host_of_rank: tuple[int, ...]
    host_names: tuple[str, ...]
    segment_fd: int
    segment_bytes: int
    slot_bytes: int
    lane_fds: tuple[int, ...]
    side_fds: tuple[int, ...]
    timeout_s: float
    link_latency_s: float
    link_bytes_per_s: float
    algorithm: str = ""


class Kind(IntEnum):
    """Collectives, and the two ends of a message, numbered as in native/include/clary/collectives.h."""

    ALL_REDUCE = 0  # reduce `count` elements of every rank into the `target` of all ranks
    ALL_GATHER = 1  # collect `count` elements of every rank, in rank order
    REDUCE_SCATTER = 2  # reduce `size * count` elements of every rank; rank r keeps chunk r
    BROADCAST = 3  # copy the root's `target` to the `target` of all ranks
    REDUCE = 4  # reduce into the root's `target`; other ranks may pass 0 as `target`
    ALL_TO_ALL = 5  # send a chunk to every rank and receive a chunk from each
    GATHER = 6  # collect `count` elements of every rank on the root
    SCATTER = 7  # give each rank its chunk of the root's `size * count` elements
    BARRIER = 8  # end when every rank has called the barrier
    SEND = 9  # send `count` bytes at `source`
    RECEIVE = 10  # receive `count` bytes to `target`; ANY_RANK: from the first sender with the tag


@dataclass(slots=True)
class Chunks:
    """Addresses by rank, if the chunks are not contiguous, and counts by rank, if they differ."""

    sources: Sequence[int] | None = None
    targets: Sequence[int] | None = None
    send_counts: Sequence[int] | None = None
    receive_counts: Sequence[int] | None = None


@dataclass(slots=True)
class Operation:
    """A collective or a message that a caller requests from a core.

    Args:
        count: elements of the buffer, or of one rank's chunk in collectives with chunks; bytes of a message.
        source, target: addresses.
        timeout_s: 0 for the group's timeout.
        root: rank of the root, or of a message's peer.
        chunks: None if the chunks are contiguous and have `count` elements each.
    """

    kind: Kind
    dtype: int = Dtype.UINT8
    count: int = 0
    source: int = 0
    target: int = 0
    asynchronous: bool = False  # only for collectives; messages are always asynchronous
    timeout_s: float = 0.0
    reduction: int = ReduceOp.SUM
    root: int = 0
    tag: int = 0
    chunks: Chunks | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of one rank's buffer or chunk; with `send_counts`, of all chunks that this rank sends."""
        sent = self.chunks.send_counts if self.chunks is not None else None
        return (self.count if sent is None else sum(sent)) * ELEMENT_BYTES[self.dtype]


class ShortCalls(ABC):
    """Implements the short calls by `run`, for cores without a faster path."""

    @abstractmethod
    def run(self, operation: Operation) -> int:
        """Begin an operation, as `Core.run`."""

    def all_reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Run an all-reduce by `run`.

        Args: as `Core.all_reduce`.
        """
        return self.run(Operation(Kind.ALL_REDUCE, dtype, count, source, target, asynchronous, timeout_s, op))

    def all_gather(self, source: int, target: int, count: int, dtype: int, asynchronous: bool, timeout_s: float) -> int:
        """Run an all-gather by `run`.

        Args: as `Core.all_gather`.
        """
        return self.run(Operation(Kind.ALL_GATHER, dtype, count, source, target, asynchronous, timeout_s))

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: int, op: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Run a reduce-scatter by `run`.

        Args: as `Core.reduce_scatter`.
        """
        return self.run(Operation(Kind.REDUCE_SCATTER, dtype, count, source, target, asynchronous, timeout_s, op))


class Core(Protocol):
    """A communicator over established connections.

    Every method raises the exceptions of `errors`, chosen by the `clary_code`; after any error other than a bad
    argument the core is poisoned and each later call raises the first cause.
    """

    def run(self, operation: Operation) -> int:
        """Begin an operation; return 0 if it has ended, or a ticket > 0 to wait for. A message always has a ticket.

        Collectives run in the order of their calls. The core copies lists, not memory.
        """

    # Short calls: frequent operations without an `Operation`, whose construction takes a quarter of Python's share of a
    # call's time (docs/adr/0083).

    def all_reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Reduce the buffers of all ranks into the `target` of every rank; returns the same as `run`.

        Args:
            source: address of `count` elements.
            target: address of `count` elements; may equal `source`.
            count: elements of the buffer.
            dtype: a `Dtype`.
            op: a `ReduceOp`.
            asynchronous: return a ticket instead of waiting.
            timeout_s: 0 for the group's timeout.
        """

    def all_gather(self, source: int, target: int, count: int, dtype: int, asynchronous: bool, timeout_s: float) -> int:
        """Collect the chunk of every rank at `target`, in rank order; returns the same as `run`.

        Args:
            source: address of `count` elements.
            target: address of `size * count` elements.
            count: elements of one rank's chunk.
            dtype: a `Dtype`.
            asynchronous: return a ticket instead of waiting.
            timeout_s: 0 for the group's timeout.
        """

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: int, op: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Reduce the buffers of all ranks; rank r keeps chunk r at `target`; returns the same as `run`.

        Args:
            source: address of `size * count` elements.
            target: address of `count` elements.
            count: elements of one rank's chunk.
            dtype: a `Dtype`.
            op: a `ReduceOp`.
            asynchronous: return a ticket instead of waiting.
            timeout_s: 0 for the group's timeout.
        """

    def wait(self, ticket: int, limit_s: float | None) -> int | None:
        """Wait until the operation has ended. Return the peer of a receive, else 0; None if `limit_s` passed first."""

    def is_done(self, ticket: int) -> bool:
        """Whether the operation has ended, with success or failure."""

    def watch(self, ticket: int) -> None:
        """Make `next_watched` return this ticket once its operation has ended."""

    def next_watched(self, limit_s: float) -> int:
        """Wait for a watched operation to end; return its ticket, 0 if `limit_s` passed, -1 once the core is closed."""

    def abort(self, reason: str) -> None:
        """Poison the group on all ranks."""

    def explain(self, collective: int, num_bytes: int) -> str:
        """Return the algorithm that the cost model chooses, and why."""

    def counters(self) -> dict[str, int]:
        """Return counts since creation by name: operations, bytes reduced, bytes on lanes, and others of the core."""

    def close(self) -> None:
        """Leave the group properly; pending operations fail. A second call does nothing."""
