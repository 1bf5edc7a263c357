"""The process groups of a mesh, and exchange of objects between ranks.

Where: `runtime.initialize` makes `Groups` once; modules, reducers and checkpoints use its groups along their axes.

Objects are sent pickled, between ranks of one program, which trust each other. Only the source calls `broadcast`; each
other member of the group calls `receive`, as scripts written for SMP do.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_common_api.rst`.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel.errors import ParallelError
from clary.train.parallel.layout.mesh import Along, Mesh

_OBJECT_TAG = 0x0B1  # tag of object messages, which distinguishes them from the program's own messages


class Groups:
    """All groups of which one rank is a member. All ranks construct it at the same time, as torch's groups require.

    Args:
        rank: global rank of this process.
        timeout: limit of one operation of a group.
        check: called before the mesh's groups are made, since ranks of different meshes would wait for each other; may
            gather objects from all ranks.
    """

    def __init__(
        self, mesh: Mesh, rank: int, *, timeout: timedelta, check: Callable[[Groups], None] | None = None
    ) -> None:
        self.mesh = mesh
        self.rank = rank
        self._timeout_s = timeout.total_seconds()
        # Objects are bytes in host memory, so this group uses gloo whatever the backend of tensors.
        self._objects = dist.new_group(list(range(mesh.size)), timeout=timeout, backend="gloo")
        if check is not None:
            check(self)
        self._made: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for along in Along:
            for ranks in mesh.groups(along):
                if ranks not in self._made:
                    self._made[ranks] = dist.new_group(list(ranks), timeout=timeout)

    def process_group(self, along: Along) -> dist.ProcessGroup:
        """Return this rank's group along these axes, for torch.distributed's functions."""
        return self._made[self.ranks(along)]

    def ranks(self, along: Along) -> tuple[int, ...]:
        """Return the global ranks of this rank's group along these axes, in the order of the group."""
        return self.mesh.group(along, self.rank)

    def group_rank(self, along: Along) -> int:
        """Return this rank's index in its group along these axes."""
        return self.ranks(along).index(self.rank)

    def size(self, along: Along) -> int:
        """Return the number of ranks in this rank's group along these axes."""
        return len(self.ranks(along))

    def global_rank(self, along: Along, group_rank: int) -> int:
        """Return the global rank of a member of this rank's group.

        Raises: ValueError if the group has no such rank.
        """
        ranks = self.ranks(along)
        if not 0 <= group_rank < len(ranks):
            raise ValueError(f"{along.name} rank {group_rank} is not in 0..{len(ranks) - 1}, the group of {self.rank}")
        return ranks[group_rank]

    def send(self, obj: Any, group_rank: int, along: Along) -> None:
        """Send an object to a member of this rank's group, which calls `receive`.

        Args:
            obj: any object that can be pickled.
            group_rank: rank of the receiver in this rank's group along `along`.

        Raises: ValueError if there is no such member, or it is this rank.
        """
        dest = self.global_rank(along, group_rank)
        if dest == self.rank:
            raise ValueError(f"rank {self.rank} sends to itself ({along.name} rank {group_rank})")
        payload = _to_bytes(obj)
        length = torch.tensor([payload.numel()])
        dist.send(length, dest, group=self._objects, tag=_OBJECT_TAG)
        dist.send(payload, dest, group=self._objects, tag=_OBJECT_TAG)

    def receive(self, group_rank: int, along: Along) -> Any:
        """Return the next object that a member of this rank's group sent or broadcast.

        Raises: ValueError if there is no such member, or it is this rank.
        """
        source = self.global_rank(along, group_rank)
        if source == self.rank:
            raise ValueError(f"rank {self.rank} receives from itself ({along.name} rank {group_rank})")
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, source, group=self._objects, tag=_OBJECT_TAG)
        payload = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(payload, source, group=self._objects, tag=_OBJECT_TAG)
        return _from_bytes(payload)

    def broadcast(self, obj: Any, along: Along) -> None:
        """Send an object to all other members of this rank's group; each of them calls `receive` with this rank."""
        for group_rank, rank in enumerate(self.ranks(along)):
            if rank != self.rank:
                self.send(obj, group_rank, along)

    def allgather(self, obj: Any, along: Along) -> list[Any]:
        """Return the objects of all members, by group rank. All members call it.

        Raises: ParallelError naming a member that does not call it.
        """
        ranks = self.ranks(along)
        gathered: list[Any] = [obj if rank == self.rank else None for rank in ranks]
        for distance in range(1, len(ranks)):  # in every round each rank sends to one rank and receives from another
            own = ranks.index(self.rank)
            to, source = (own + distance) % len(ranks), (own - distance) % len(ranks)
            try:
                gathered[source] = self._exchange(obj, to, source, along)
            except RuntimeError as error:  # gloo's error, which names no rank
                raise ParallelError(
                    f"rank {self.rank} gave up waiting for rank {ranks[source]}, after {self._timeout_s:g} s or "
                    "because that rank ended: a function that gathers from ranks, such as state_dict of a "
                    "DistributedModel and save_checkpoint, must be called by all of them, not by rank 0 alone "
                    f"({error})"
                ) from error
        return gathered

    def barrier(self, along: Along) -> None:
        """Wait until all members of the group have called it."""
        self.allgather(None, along)

    def _exchange(self, obj: Any, to: int, source: int, along: Along) -> Any:
        payload = _to_bytes(obj)
        dest = self.global_rank(along, to)
        sends = [
            dist.isend(tensor, dest, group=self._objects, tag=_OBJECT_TAG)
            for tensor in (torch.tensor([payload.numel()]), payload)
        ]
        received = self.receive(source, along)
        for send in sends:
            send.wait()
        return received


def _to_bytes(obj: Any) -> torch.Tensor:
    """Pickle an object; tensors are copied by value, also from a GPU."""
    buffer = io.BytesIO()
    torch.save(obj, buffer, pickle_protocol=pickle.HIGHEST_PROTOCOL)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def _from_bytes(payload: torch.Tensor) -> Any:
    return torch.load(
        io.BytesIO(ctypes.string_at(payload.data_ptr(), payload.numel())), map_location="cpu", weights_only=False
    )
