"""A second copy of every rank's last snapshot, in the memory of a rank of another host.

The last copy that all ranks have received stays in memory while a new copy is received into other memory, so that an
interrupted exchange loses no whole copy. A rank's memory holds its own snapshot and two copies for each rank whose
partner it is. All waits have the timeout of the group that transfers the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from clary.train.checkpoint.parts import PartIndex
from clary.train.checkpoint.ranks import Ranks
from clary.train.checkpoint.snapshot import Memory, Snapshot

# bytes of one message; small enough that even a slow peer does not exceed the group's timeout
SEND_BYTES = 32 * 1024**2


class PeerMemory:
    """Copies of other ranks' parts in this rank's memory."""

    def __init__(self) -> None:
        self.held: dict[int, Memory] = {}  # rank -> its copy; all are copies of one save that all ranks have received
        self._incoming: dict[int, Memory] = {}

    def memories(self) -> list[Memory]:
        """Return all copies that are whole."""
        copies = [*self.held.values(), *self._incoming.values()]
        return [one for one in copies if one.index is not None]

    def exchange(self, ranks: Ranks, snapshot: Snapshot, partners: Sequence[int | None]) -> None:
        """Send this rank's snapshot to its partner, and receive the snapshots of the ranks whose partner it is.

        Args:
            ranks: ranks of a group used for copies alone, numbered as in the default group.
            partners: by rank, the rank that holds its copy, or None.

        State after failure: the copies of the previous save are unchanged.
        Raises: RuntimeError if a rank does not answer within the group's limit; CheckpointError if a rank lacks memory.
        """
        index = snapshot.index
        assert index is not None
        headers = ranks.all((index.to_json(), snapshot.tensors.numel(), snapshot.values.numel()))
        sources = [rank for rank, partner in enumerate(partners) if partner == ranks.rank]

        def make_room() -> None:
            for source in sources:
                memory = self._incoming.setdefault(source, Memory())
                memory.index, memory.metadata = None, snapshot.metadata
                memory.tensors = _sized(memory.tensors, headers[source][1])
                memory.values = _sized(memory.values, headers[source][2])

        ranks.map("making room for copies of other ranks' parts", make_room, lambda made: made)
        for sending, receiving in _rounds(ranks, partners):
            works: list[Any] = []
            if sending is not None:
                works += _send(snapshot, sending, ranks.group)
            if receiving is not None:
                works += _receive(self._incoming[receiving], receiving, ranks.group)
            for work in works:
                work.wait()
            if receiving is not None:
                found = headers[receiving][0]
                self._incoming[receiving].index = PartIndex.from_json(found, f"what rank {receiving} sent")
        ranks.map("keeping copies of other ranks' parts", lambda: None, lambda told: told)
        received = {source: self._incoming[source] for source in sources}
        self.held, self._incoming = received, {source: one for source, one in self.held.items() if source in received}
        for memory in self._incoming.values():
            memory.index = None  # a copy of an earlier save; its memory receives the next copy

    def release(self) -> None:
        """Free the memory."""
        self.held, self._incoming = {}, {}


def _rounds(ranks: Ranks, partners: Sequence[int | None]) -> list[tuple[int | None, int | None]]:
    """Return for each turn the rank to send to and the rank to receive from, ordered to avoid circular waits."""
    turns = []
    for distance in range(1, ranks.size):
        to, source = (ranks.rank + distance) % ranks.size, (ranks.rank - distance) % ranks.size
        sending = to if partners[ranks.rank] == to else None
        receiving = source if partners[source] == ranks.rank else None
        if sending is not None or receiving is not None:
            turns.append((sending, receiving))
    return turns


def _send(memory: Memory, to: int, group: Any) -> list[Any]:
    return [dist.isend(piece, group=group, dst=to) for piece in _messages(memory)]


def _receive(memory: Memory, source: int, group: Any) -> list[Any]:
    return [dist.irecv(piece, group=group, src=source) for piece in _messages(memory)]


def _messages(memory: Memory) -> list[torch.Tensor]:
    return [piece for one in (memory.tensors, memory.values) for piece in one.split(SEND_BYTES) if piece.numel()]


def _sized(room: torch.Tensor, num_bytes: int) -> torch.Tensor:
    return room if room.numel() == num_bytes else torch.empty(num_bytes, dtype=torch.uint8)
