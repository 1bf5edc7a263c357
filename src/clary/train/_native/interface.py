"""What a core can do: the words shared by the compiled one and the reference.

Where: `collective.communicator` and the adapters call a core; `collective.bootstrap` makes the connections it takes.
Buffers are named by address. Nobody here keeps memory alive: who calls holds the buffer until the operation has ended.
"""

from __future__ import annotations

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
        """Whether it has fractions."""
        return self <= Dtype.BFLOAT16


ELEMENT_BYTES = (4, 8, 2, 2, 1, 2, 4, 8, 1, 1)  # by Dtype


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
        """Whether elements of `dtype` can be reduced so."""
        if self is ReduceOp.AVG:
            return dtype.is_floating
        return self < ReduceOp.BAND or not dtype.is_floating


class Code(IntEnum):
    """What ended an operation."""

    OK = 0
    INVALID = 1
    TIMEOUT = 2
    PEER_LOST = 3
    ORDER_MISMATCH = 4
    CLOSED = 5
    SYSTEM = 6


@dataclass(frozen=True)
class GroupConnections:
    """How the ranks of a group lie and what connects them. A core owns the descriptors from its creation on.

    Args:
        host_of_rank: index of each rank's host, numbered in order of first appearance by rank.
        host_names: names for messages, one a host.
        segment_fd: memory shared by this host's ranks, zeroed, mapped by all of them; -1 if this rank is alone there.
        lane_fds: connected stream sockets, one a rank; -1 for itself and for ranks of the same host.
        side_fds: connected stream sockets, one a rank; -1 for itself.
        link_latency_s, link_bytes_per_s: of the link between hosts; equal on all ranks, for the choice of algorithms.
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


class Core(Protocol):
    """A communicator over made connections.

    Collectives return 0 when they are done and a ticket > 0 when `asynchronous` and not done yet; they run in the order
    of their calls. Addresses are ints; counts are elements. `inputs` and `outputs` name one address a rank where chunks
    lie apart. `timeout_s` 0 means the group's. Every method raises `errors` as `clary_code` says; after
    anything but a bad argument the core is poisoned and each later call raises the first cause.
    """

    def all_reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Reduce `count` elements of every rank into `target` of all."""

    def all_gather(
        self,
        source: int,
        target: int,
        outputs: Sequence[int] | None,
        count: int,
        dtype: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Collect `count` elements of every rank, in rank order, at `target` or one chunk at each of `outputs`."""

    def reduce_scatter(
        self,
        source: int,
        inputs: Sequence[int] | None,
        target: int,
        count: int,
        dtype: int,
        op: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Reduce `size * count` elements of every rank; rank r keeps chunk r, `count` elements."""

    def broadcast(self, buffer: int, count: int, dtype: int, root: int, asynchronous: bool, timeout_s: float) -> int:
        """Copy the root's buffer to all."""

    def reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, root: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Reduce into the root's `target`; others may pass 0."""

    def all_to_all(
        self,
        source: int,
        inputs: Sequence[int] | None,
        send_counts: Sequence[int] | None,
        target: int,
        outputs: Sequence[int] | None,
        receive_counts: Sequence[int] | None,
        count: int,
        dtype: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Send a chunk to every rank and receive one from each; counts None means `count` each."""

    def gather(
        self,
        source: int,
        target: int,
        outputs: Sequence[int] | None,
        count: int,
        dtype: int,
        root: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Collect `count` elements of every rank on the root."""

    def scatter(
        self,
        source: int,
        inputs: Sequence[int] | None,
        target: int,
        count: int,
        dtype: int,
        root: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Give each rank its chunk of the root's `size * count` elements."""

    def barrier(self, asynchronous: bool, timeout_s: float) -> int:
        """End when every rank has called it."""

    def send(self, buffer: int, num_bytes: int, peer: int, tag: int, timeout_s: float) -> int:
        """Begin to send; a ticket."""

    def receive(self, buffer: int, num_bytes: int, peer: int, tag: int, timeout_s: float) -> int:
        """Begin to receive; a ticket. `peer` ANY_RANK takes the first that matches the tag."""

    def wait(self, ticket: int, limit_s: float | None) -> int | None:
        """Wait until the operation has ended; the peer of a receive, else 0. None when `limit_s` passed first."""

    def is_done(self, ticket: int) -> bool:
        """Whether the operation has ended, well or not."""

    def watch(self, ticket: int) -> None:
        """Have `next_watched` return this ticket once it has ended."""

    def next_watched(self, limit_s: float) -> int:
        """Wait for the end of a watched operation: its ticket, 0 when `limit_s` passed, -1 once the core is closed."""

    def abort(self, reason: str) -> None:
        """Poison the group on all ranks."""

    def explain(self, collective: int, num_bytes: int) -> str:
        """Say which algorithm the cost model takes and why."""

    def counters(self) -> dict[str, int]:
        """Count operations, bytes reduced, bytes on lanes, sleeps and wakes since creation."""

    def close(self) -> None:
        """Leave the group in order; pending operations fail. A second call does nothing."""
