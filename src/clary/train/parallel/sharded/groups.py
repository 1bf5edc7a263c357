"""The process groups of sharded data parallelism: ranks that share a replica, and ranks with the same shard.

[Note: backend of one host] gloo sends between the ranks of one host through sockets. The backend smddp uses shared
memory between these ranks. So where replicas use gloo, a group whose ranks are all on one host uses smddp, if each of
its ranks has the compiled core and keeps its tensors in host memory. Groups across hosts keep gloo.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from clary.train.collective.adapters.torch.backend_name import BACKEND
from clary.train.collective.adapters.torch.registration import register
from clary.train.collective.cores import has_native_core
from clary.train.collective.settings import CollectiveSettings
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
        """Number of sharding groups: n divided by the sharding degree k."""
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

    Raises: ValueError if the degree does not divide the number of replicas.
    """
    ranks = dist.get_process_group_ranks(replicas)
    if degree < 1 or len(ranks) % degree:
        raise ValueError(
            f"sharded_data_parallel_degree is {degree}; it must divide the {len(ranks)} ranks {ranks} that hold the "
            "same parameters"
        )
    member = replicas.rank() % degree
    first = replicas.rank() - member
    own = (host or socket.gethostname(), _can_share_memory())
    everyone: list[tuple[str, bool]] = [own] * len(ranks)
    dist.all_gather_object(everyone, own, group=replicas)
    hosts = [name for name, _ in everyone]
    replicas_backend = dist.get_backend(replicas)

    def make(members: list[int]) -> dist.ProcessGroup:
        backend = backend_of_group(replicas_backend, [everyone[one] for one in members])
        if backend == BACKEND:
            register()
        return dist.new_group(
            [ranks[one] for one in members], backend=backend, timeout=timeout, use_local_synchronization=True
        )

    # All ranks make the kinds of groups in the same order, so that they cannot deadlock.
    sharding = make(list(range(first, first + degree)))
    replication = make(list(range(member, len(ranks), degree)))
    grid = host_grid(hosts, degree) if hierarchical else None
    segment = segment_of(member, grid)
    if grid is None:
        return ShardingGroups(replicas, sharding, replication, degree, segment)
    num_hosts, a_host = grid
    own_host, place = divmod(member, a_host)
    across = make([first + other * a_host + place for other in range(num_hosts)])
    within = make([first + own_host * a_host + other for other in range(a_host)])
    return ShardingGroups(replicas, sharding, replication, degree, segment, grid, across, within)


def backend_of_group(replicas_backend: str, members: Sequence[tuple[str, bool]]) -> str:
    """Return the backend of a group; see [Note: backend of one host].

    Args:
        replicas_backend: backend of the group of all replicas.
        members: for each rank of the group, the name of its host and whether the rank can share memory through smddp.
    """
    names = {name for name, _ in members}
    shares_memory = len(members) > 1 and len(names) == 1 and all(can_share for _, can_share in members)
    return BACKEND if replicas_backend == "gloo" and shares_memory else replicas_backend


def _can_share_memory() -> bool:
    return not torch.cuda.is_available() and has_native_core(CollectiveSettings.from_environment(os.environ))
