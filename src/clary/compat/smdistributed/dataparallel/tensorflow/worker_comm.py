"""The communicator of all ranks, for objects: `get_worker_comm`.

Evaluation callbacks use it in place of mpi4py's COMM_WORLD: they gather predictions of all ranks on rank 0. It needs no
MPI: ranks that mpirun has not started would each be alone in COMM_WORLD.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from .ranks import process


def get_worker_comm() -> WorkerComm:
    """Return the communicator of all ranks. Raises: CollectiveError before `init`."""
    return WorkerComm()


class WorkerComm:
    """Exchanges objects that can be pickled, by the names of mpi4py. All ranks make the same calls in the same order.

    Raises: CollectiveError before `init`, and if an exchange failed.
    """

    def __init__(self) -> None:
        self._world = process.world

    @property
    def rank(self) -> int:
        """This process's rank among all."""
        return self._world.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._world.size

    def Get_rank(self) -> int:
        """Return this process's rank among all."""
        return self.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self.size

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks, in rank order, on the root; None on other ranks.

        Raises: ValueError for a root that is not a rank.
        """
        self._check(root)
        packed, lengths = self._pack(sendobj)
        parts = self._world.gather(packed, root=root)
        return None if parts is None else _unpack(parts, lengths)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order."""
        packed, lengths = self._pack(sendobj)
        return _unpack(self._world.allgather(packed), lengths)

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        """Return the root's object on all ranks. Raises: ValueError for a root that is not a rank."""
        self._check(root)
        own = np.frombuffer(pickle.dumps(obj), np.uint8).copy() if self.rank == root else np.empty(0, np.uint8)
        (length,) = self._world.bcast(np.array([own.size], np.int64), root=root)
        packed = own if self.rank == root else np.empty(int(length), np.uint8)
        return pickle.loads(self._world.bcast(packed, root=root).tobytes())  # noqa: S301 - from a rank of this job

    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        self._world.barrier()

    def Barrier(self) -> None:
        """Wait until all ranks have called it."""
        self._world.barrier()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the communicator of get_worker_comm has no {name}: it has gather, allgather, bcast, barrier, Get_rank "
            "and Get_size; for others use mpi4py in a job that mpirun starts"
        )

    def _check(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} is no rank: ranks are 0 to {self.size - 1}")

    def _pack(self, obj: Any) -> tuple[np.ndarray, list[int]]:
        """Return the object's pickle, padded to the longest of all ranks, and the lengths of all ranks' pickles."""
        words = pickle.dumps(obj)
        lengths = [int(length) for (length,) in self._world.allgather(np.array([len(words)], np.int64))]
        packed = np.zeros(max(lengths), np.uint8)
        packed[: len(words)] = np.frombuffer(words, np.uint8)
        return packed, lengths


def _unpack(parts: np.ndarray, lengths: list[int]) -> list[Any]:
    return [
        pickle.loads(part[:length].tobytes())  # noqa: S301 - from a rank of this job
        for part, length in zip(parts, lengths, strict=True)
    ]
