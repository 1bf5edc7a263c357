"""`tsm.init`: reads the configuration, makes the groups and patches FSDP with our additions.

Where: scripts call it once on every rank, after `torch.distributed.init_process_group`; see `additions`, `offloading`.
Source: SageMaker developer guide, "SageMaker model parallel library v2 reference".
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from clary.train.parallel import one_library
from clary.train.parallel.fsdp.configuration import read_fsdp_configuration, read_job, read_script
from clary.train.parallel.fsdp.experts.groups import make_expert_groups
from clary.train.parallel.fsdp.logs import get_logger
from clary.train.parallel.fsdp.ranker import Ranker
from clary.train.parallel.fsdp.state import DEFAULTS, state


def init(config: Any = None) -> None:
    """Read the configuration, make the groups and patch FSDP with our additions. Every rank calls it.

    A second call with equal keys, or without `config`, does nothing.

    Args:
        config: None, a dict, or the path of a JSON file; keys of the job's `mp_parameters` override it.

    State after failure: unchanged.
    Raises:
        ValueError: a key is unknown, or degrees break a rule, which the error names.
        TypeError: `config` is of another type.
        RuntimeError: torch.distributed is not initialised, `init` was called with other keys, `smp.init` was called, or
            this torch lacks a function that `additions` patches.
    """
    # saves 439 ms, mostly the import of torch's FSDP, in programs that import a name but never call `init`
    from clary.train.parallel.fsdp import additions, offloading

    is_first = state.configuration is None
    assigned = {key: value for key, value in vars(state).items() if key in DEFAULTS} if is_first else state.assigned
    configuration = read_fsdp_configuration(read_job(os.environ), read_script(config), assigned)
    if state.configuration is not None:
        if config is not None and configuration != state.configuration:
            raise RuntimeError(f"tsm.init was called with {state.configuration} before; got {configuration}")
        return
    one_library.check(one_library.V2)
    if not dist.is_initialized():
        raise RuntimeError("tsm.init: call torch.distributed.init_process_group first, on every rank")
    configuration.check_size(dist.get_world_size())
    additions.check()
    ranker = Ranker(
        dist.get_world_size(),
        configuration.hybrid_shard_degree,
        configuration.tensor_parallel_degree,
        configuration.context_parallel_degree,
    )
    groups: dict[str, Any] = {}
    if configuration.hybrid_shard_degree or configuration.tensor_parallel_degree > 1:
        groups["rep_rank_process_group"] = _own_group(ranker.get_rep_groups())
        groups["shard_process_group"] = _own_group(ranker.get_shard_groups())
    if configuration.tensor_parallel_degree > 1:
        groups["tp_process_group"] = _own_group(ranker.get_tp_groups())
    if configuration.context_parallel_degree > 1:
        groups["cp_process_group"] = _own_group(ranker.get_cp_groups())
    if configuration.expert_parallel_degree > 1:
        experts = make_expert_groups(configuration.expert_parallel_degree, configuration.hybrid_shard_degree)
        groups |= {"expert_groups": experts, "ep_process_group": experts.ep.process_group}
    keys = {key: getattr(configuration, key) for key in DEFAULTS}
    one_library.claim(one_library.V2)
    vars(state).update(keys, configuration=configuration, assigned=assigned, **groups)
    state.removals = (additions.remove, offloading.remove)
    additions.install()
    if ignored := configuration.without_effect():
        get_logger().warning("keys without effect here: %s", ", ".join(ignored))
    if configuration.sm_activation_offloading:
        offloading.install(horizon=configuration.activation_loading_horizon)


def _own_group(all_ranks: list[list[int]]) -> Any:
    """Make all groups, as every rank must, and return this rank's group."""
    own = None
    for ranks in all_ranks:
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            own = group
    return own
