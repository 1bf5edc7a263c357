"""The shard of each rank, and the ranks that hold the same shard, computed without communication.

Ranks are numbered with tensor parallelism innermost, context parallelism next, so that data rank and shard are computed
by division:

    rank = (replica * num_shards + shard) * tensor_degree + tensor_rank
    shard = ... * context_degree + context_rank
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ranker:
    """The layout of `size` ranks.

    Args:
        shard_degree: number of ranks over which a parameter is sharded; 0 is the number of ranks divided by
            `tensor_degree`.
        expert_degree: number of consecutive ranks that hold different experts.
    """

    size: int
    shard_degree: int = 0
    tensor_degree: int = 1
    context_degree: int = 1
    expert_degree: int = 1

    @property
    def num_shards(self) -> int:
        """Number of ranks over which a parameter is sharded."""
        return self.shard_degree or self.size // self.tensor_degree

    @property
    def _num_different(self) -> int:
        """Number of ranks after which shards and experts repeat; one of the two periods is a multiple of the other."""
        return max(self.num_shards * self.tensor_degree, self.expert_degree)

    def get_rep_rank(self, rank: int) -> int:
        """Return the index of a rank among the ranks that hold the same shard."""
        return rank // self._num_different

    def get_rep_groups(self) -> list[list[int]]:
        """Return, for each shard, the ranks that hold it."""
        step = self._num_different
        return [list(range(first, self.size, step)) for first in range(step)]

    def get_shard_groups(self) -> list[list[int]]:
        """Return, for each replica and tensor rank, the ranks that together hold a parameter once."""
        step = self.num_shards * self.tensor_degree
        return [
            list(range(first + tensor_rank, first + step, self.tensor_degree))
            for first in range(0, self.size, step)
            for tensor_rank in range(self.tensor_degree)
        ]

    def get_tp_groups(self) -> list[list[int]]:
        """Return the groups of ranks that share a batch and hold different slices of layers."""
        return [list(range(first, first + self.tensor_degree)) for first in range(0, self.size, self.tensor_degree)]

    def get_cp_groups(self) -> list[list[int]]:
        """Return the groups of ranks that share a batch and hold different parts of its sequences."""
        step = self.tensor_degree * self.context_degree
        return [
            list(range(first + tensor_rank, first + step, self.tensor_degree))
            for first in range(0, self.size, step)
            for tensor_rank in range(self.tensor_degree)
        ]
