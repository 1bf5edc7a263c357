"""The ranks over which experts are spread, and the ranks over which FSDP shards each expert.

    rank                  0 1 2 3 4 5 6 7     expert_degree 2, shard_degree 4
    expert parallel rank  0 1 0 1 0 1 0 1     consecutive ranks hold different experts and exchange tokens
    cut over              0+2 1+3 4+6 5+7     ranks of one block of shard_degree with equal expert parallel rank
    replicas              0+4 1+5 2+6 3+7     ranks that hold the same shard of the same experts

Other parameters are sharded over whole blocks of shard_degree ranks. The experts of a rank are fewer parameters, cut
into fewer shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from clary.train.parallel.tensor.collectives import TensorGroup


@dataclass(frozen=True)
class ExpertRanks:
    """The layout of `size` ranks, without communication.

    Args:
        expert_degree: number of ranks over which the experts of a layer are spread.
        shard_degree: hybrid_shard_degree: number of ranks over which other parameters are sharded; 0 is all ranks.

    Raises: ValueError naming a division rule that the degrees break.
    """

    size: int
    expert_degree: int
    shard_degree: int = 0

    def __post_init__(self) -> None:
        block = self.shard_degree or self.size
        if self.size % self.expert_degree or (block % self.expert_degree and self.expert_degree % block):
            raise ValueError(
                f"expert_parallel_degree is {self.expert_degree}; it must divide the {self.size} ranks, and "
                f"it must divide hybrid_shard_degree, which is {self.shard_degree}, or be a multiple of it"
            )

    @property
    def num_shards(self) -> int:
        """Number of shards into which FSDP cuts the experts of a rank."""
        return max((self.shard_degree or self.size) // self.expert_degree, 1)

    def ep_groups(self) -> list[list[int]]:
        """Return the groups of ranks that hold different experts."""
        return [list(range(first, first + self.expert_degree)) for first in range(0, self.size, self.expert_degree)]

    def same_groups(self) -> list[list[int]]:
        """Return the groups of ranks that hold the same experts, over which experts' gradients are averaged."""
        return [list(range(first, self.size, self.expert_degree)) for first in range(self.expert_degree)]

    def shard_groups(self) -> list[list[int]]:
        """Return the groups of ranks that together hold the same experts once."""
        return [
            ranks[first : first + self.num_shards]
            for ranks in self.same_groups()
            for first in range(0, len(ranks), self.num_shards)
        ]

    def replica_groups(self) -> list[list[int]]:
        """Return the groups of ranks that hold the same shard of the same experts."""
        return [ranks[first :: self.num_shards] for ranks in self.same_groups() for first in range(self.num_shards)]


@dataclass(frozen=True, eq=False)
class ExpertGroups:
    """The groups of this rank.

    Args:
        ep: the group of ranks that hold different experts.
        same: the group of ranks that hold the same experts; `shard` and `replicas` are its parts.
        num_shards: number of ranks in `shard`.
        shard_degree: the configured hybrid_shard_degree.
    """

    ep: TensorGroup
    same: Any
    shard: Any
    replicas: Any
    num_shards: int
    shard_degree: int


def make_expert_groups(expert_degree: int, shard_degree: int) -> ExpertGroups:
    """Make the groups; every rank of the world calls it at the same time.

    Raises: ValueError naming a division rule that the degrees break.
    """
    rank = dist.get_rank()
    ranks = ExpertRanks(dist.get_world_size(), expert_degree, shard_degree)
    made: dict[tuple[int, ...], Any] = {}

    def own(all_ranks: list[list[int]]) -> Any:
        for members in all_ranks:
            if tuple(members) not in made:
                made[tuple(members)] = dist.new_group(members)
        return next(made[tuple(members)] for members in all_ranks if rank in members)

    ep = TensorGroup(own(ranks.ep_groups()), rank % expert_degree, expert_degree)
    same = own(ranks.same_groups())
    return ExpertGroups(
        ep, same, own(ranks.shard_groups()), own(ranks.replica_groups()), ranks.num_shards, shard_degree
    )
