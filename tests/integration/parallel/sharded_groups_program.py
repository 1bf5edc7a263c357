"""The backends of the groups of sharded training: shared memory within a host, gloo across hosts."""

import os

import torch.distributed as dist
from sharded_data_parallel_program import groups_of

from clary.train.parallel.sharded.groups import backend_of_group


def test_a_backend_is_smddp_only_where_all_ranks_of_a_host_can_share_memory(rank, size):
    able, unable, elsewhere = ("host-1", True), ("host-1", False), ("host-2", True)
    assert backend_of_group("gloo", [able, able]) == "smddp"
    assert backend_of_group("gloo", [able, unable]) == "gloo"
    assert backend_of_group("gloo", [able, elsewhere]) == "gloo"
    assert backend_of_group("gloo", [able]) == "gloo"
    assert backend_of_group("nccl", [able, able]) == "nccl"


def test_groups_of_one_host_share_memory_and_groups_across_hosts_keep_gloo(rank, size):
    shared = "smddp" if os.environ["CLARY_COLLECTIVE_CORE"] == "native" else "gloo"
    together = groups_of(rank, size)
    apart = groups_of(rank, size, host=f"host-{rank}")
    assert dist.get_backend(together.sharding) == shared
    assert dist.get_backend(together.replicas) == dist.get_backend(apart.sharding) == "gloo"
