"""The process groups of sharded data parallelism: ranks that share a replica, and ranks with the same shard."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from clary.train.parallel.sharded.layout import host_grid, segment_of


@dataclass(frozen=True)
class ShardingGroups:
    """The groups of one rank; see [Note: two hops] in the package.

    Args:
        replicas: all ranks that hold the same parameters.
        sharding: the ranks whose shards form one replica.
        replication: the ranks that keep the same segments.
        segment: number of the segment that this rank keeps of every buffer.
        grid: (hosts, ranks per host) of the sharding group, if it gathers in two stages.
        across: with a grid, the members of the sharding group with the same local index on their hosts.
        within: with a grid, the members of the sharding group on this host.
    """

    replicas: dist.ProcessGroup
    sharding: dist.ProcessGroup
    replication: dist.ProcessGroup
    degree: int
    segment: int
    grid: tuple[int, int] | None = None
    across: dist.ProcessGroup | None = None
    within: dist.ProcessGroup | None = None

    @property
    def num_replicas(self) -> int:
        """Number of ranks that hold the same parameters, n."""
        return int(self.replicas.size())

    @property
    def num_groups(self) -> int:
        """Number of sharding groups, n / k."""
        return self.num_replicas // self.degree


def make_sharding_groups(
    replicas: dist.ProcessGroup,
    degree: int,
    *,
    hierarchical: bool = True,
    host: str | None = None,
    timeout: timedelta | None = None,
) -> ShardingGroups:
    """Cut replicas into groups of `degree` consecutive ranks. All replicas make all their groups in the same order.

    Args:
        hierarchical: whether groups on several hosts, with several ranks on each, gather in two stages.
        host: name of this rank's host; None is this machine's name.
        timeout: timeout of an operation; None is the backend's default.

    Raises: ValueError if the degree does not divide the replicas.
    """
    ranks = dist.get_process_group_ranks(replicas)
    if degree < 1 or len(ranks) % degree:
        raise ValueError(
            f"sharded_data_parallel_degree is {degree}; it must divide the {len(ranks)} ranks {ranks} that hold the "
            "same parameters"
        )
    member = replicas.rank() % degree
    first = replicas.rank() - member
    backend = dist.get_backend(replicas)

    def make(members: list[int]) -> dist.ProcessGroup:
        return dist.new_group(
            [ranks[one] for one in members], backend=backend, timeout=timeout, use_local_synchronization=True
        )

    # Every rank makes its kinds of groups in the same order, so that ranks cannot deadlock.
    sharding = make(list(range(first, first + degree)))
    replication = make(list(range(member, len(ranks), degree)))
    hosts: list[str] = [""] * len(ranks)
    dist.all_gather_object(hosts, host or socket.gethostname(), group=replicas)
    grid = host_grid(hosts, degree) if hierarchical else None
    segment = segment_of(member, grid)
    if grid is None:
        return ShardingGroups(replicas, sharding, replication, degree, segment)
    num_hosts, a_host = grid
    own_host, place = divmod(member, a_host)
    across = make([first + other * a_host + place for other in range(num_hosts)])
    within = make([first + own_host * a_host + other for other in range(a_host)])
    return ShardingGroups(replicas, sharding, replication, degree, segment, grid, across, within)
