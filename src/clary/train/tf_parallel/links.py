"""Exchanges between ranks: objects by SMP's send and receive calls, arrays along a pipeline, means over replicas.

Where: `session` makes `Links` once; `running` sends activations and gradients, `plan` and the public functions exchange
objects.

Objects are sent pickled, between ranks of one program, which trust each other. Only the source calls `broadcast`; each
other member of the group calls `receive`, as scripts written for SMP do.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_common_api.rst`.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from clary.train._native.interface import ReduceOp
from clary.train.collective.adapters.numpy import World
from clary.train.collective.adapters.tensorflow.blocks import Blocks
from clary.train.parallel.layout.mesh import Along, Mesh

_OBJECT_TAG = 0x0B1
FIRST_TENSOR_TAG = 0x1000  # tag of message 0 of microbatch 0; `running` counts up from it


class Links:
    """Groups of a mesh over one world. Every rank constructs it at the same time.

    Methods raise CollectiveError if another rank does not answer or has ended; the links are unusable from then on.
    """

    def __init__(self, mesh: Mesh, world: World) -> None:
        self.mesh = mesh
        self.world = world
        self.rank = world.rank
        self._replicas = self._subgroup(Along.DP)
        self._blocks = Blocks()

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
            raise ValueError(
                f"{along.name} rank {group_rank} is not in 0..{len(ranks) - 1}, the group ranks in the group "
                f"of rank {self.rank}"
            )
        return ranks[group_rank]

    def send(self, obj: Any, group_rank: int, along: Along) -> None:
        """Send an object to a member of this rank's group, which calls `receive`.

        Args:
            obj: any object that can be pickled.
            group_rank: rank of the receiver in this rank's group along `along`.

        Raises: ValueError if there is no such member, or it is this rank.
        """
        for work in self._begin(obj, self._other(group_rank, along, "sends to")):
            work.wait()

    def receive(self, group_rank: int, along: Along) -> Any:
        """Return the next object that a member of this rank's group sent or broadcast.

        Raises: ValueError if there is no such member, or it is this rank.
        """
        source = self._other(group_rank, along, "receives from")
        length = np.zeros(1, np.int64)
        self.world.recv(length, source, _OBJECT_TAG)
        payload = np.empty(int(length[0]), np.uint8)
        self.world.recv(payload, source, _OBJECT_TAG)
        return pickle.loads(payload.tobytes())  # noqa: S301 - of a rank of this program

    def broadcast(self, obj: Any, along: Along) -> None:
        """Send an object to all other members of this rank's group; each of them calls `receive` with this rank."""
        for group_rank, rank in enumerate(self.ranks(along)):
            if rank != self.rank:
                self.send(obj, group_rank, along)

    def allgather(self, obj: Any, along: Along) -> list[Any]:
        """Return the objects of all members, by group rank. All members call it."""
        ranks = self.ranks(along)
        own = ranks.index(self.rank)
        gathered: list[Any] = [obj] * len(ranks)
        for distance in range(1, len(ranks)):  # in every round each rank sends to one rank and receives from another
            sends = self._begin(obj, ranks[(own + distance) % len(ranks)])
            source = (own - distance) % len(ranks)
            gathered[source] = self.receive(source, along)
            for work in sends:
                work.wait()
        return gathered

    def barrier(self, along: Along) -> None:
        """Wait until all members of the group have called it."""
        self.allgather(None, along)

    def average(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the mean of each array over the ranks that hold the same part. All these ranks call it.

        Args:
            arrays: C-contiguous floating-point arrays, with equal types and shapes on all ranks; not changed.
        """
        if self._replicas is None or not arrays:
            return list(arrays)
        averages = [self.room(array.shape, array.dtype) for array in arrays]
        for array, target in zip(arrays, averages, strict=True):
            self._replicas.all_reduce(array, ReduceOp.AVG, target)
        return averages

    def first_replicas(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the arrays of the first rank that holds the same part. All ranks of the part call it.

        Args:
            arrays: arrays with equal shapes and types on all ranks; not changed.
        """
        if self._replicas is None or not arrays:
            return list(arrays)
        copies = [self.room(array.shape, array.dtype) for array in arrays]
        for array, copy in zip(arrays, copies, strict=True):
            np.copyto(copy, array)
            self._replicas.bcast(copy, 0)
        return copies

    def room(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Allocate an aligned array for a tensor, since TensorFlow aborts a process on an unaligned array.

        Its content is undefined.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        return self._blocks.take(num_bytes).view(dtype).reshape(shape)

    def close(self) -> None:
        """Leave all groups. A second call does nothing."""
        if self._replicas is not None:
            self._replicas.close()
        self.world.close()

    def _subgroup(self, along: Along) -> World | None:
        ranks = self.ranks(along)
        if self.mesh.degree(along) == 1:
            return None
        group = self.world.communicator.subgroup(ranks)
        assert group is not None, "every rank is in a group of its own along every axis"
        return World(group)

    def _other(self, group_rank: int, along: Along, verb: str) -> int:
        rank = self.global_rank(along, group_rank)
        if rank == self.rank:
            raise ValueError(f"rank {self.rank} {verb} itself ({along.name} rank {group_rank})")
        return rank

    def _begin(self, obj: Any, rank: int) -> list[Any]:
        payload = np.frombuffer(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), np.uint8)
        lengths = np.array([payload.size], np.int64)
        return [self.world.isend(one, rank, _OBJECT_TAG) for one in (lengths, payload)]
