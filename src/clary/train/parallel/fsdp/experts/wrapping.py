"""Changes to FSDP's arguments so that experts are sharded over the ranks that hold the same experts.

Where: the patched constructor of FSDP (`additions`) calls `expert_wrapping` with its arguments, before other code of
`tsm` changes them.

Experts become units of their own, since a flat parameter is sharded over one group, and experts have another group than
the modules around them. Any wrapping policy is extended to select experts; without a policy, experts are wrapped before
their parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import _Policy

from clary.train.parallel.fsdp.experts.groups import ExpertGroups
from clary.train.parallel.fsdp.experts.layer import OwnExperts
from clary.train.parallel.fsdp.experts.spreading import is_of_experts

_NOT_HYBRID = {
    ShardingStrategy.HYBRID_SHARD: ShardingStrategy.FULL_SHARD,
    ShardingStrategy._HYBRID_SHARD_ZERO2: ShardingStrategy.SHARD_GRAD_OP,
}


def expert_wrapping(arguments: dict[str, Any], groups: ExpertGroups) -> bool:
    """Change the arguments of FSDP's constructor so that experts are sharded over their own groups.

    Args:
        arguments: arguments by name, as bound to the constructor's signature, including "module"; changed in place.

    Returns: whether the module consists of experts: then the function has set its group and strategy, which callers
        must not change.
    """
    module = arguments["module"]
    if is_of_experts(module):
        _use_groups_of_experts(arguments, groups)
        return True
    bare = list(_bare_experts(module))
    if not bare:
        return False
    policy = arguments.get("auto_wrap_policy")
    if policy is None:
        given = {key: value for key, value in arguments.items() if key not in ("self", "module")}
        for parent, name in bare:
            setattr(parent, name, FullyShardedDataParallel(getattr(parent, name), **given))
    elif isinstance(policy, _Policy):
        arguments["auto_wrap_policy"] = _WithExperts(policy)
    else:
        arguments["auto_wrap_policy"] = _with_experts(policy)
    return False


def _use_groups_of_experts(arguments: dict[str, Any], groups: ExpertGroups) -> None:
    asked = arguments.get("sharding_strategy") or ShardingStrategy.FULL_SHARD
    arguments["device_mesh"] = None
    if groups.num_shards == 1:
        arguments["sharding_strategy"], arguments["process_group"] = ShardingStrategy.NO_SHARD, groups.same
    elif groups.shard_degree == 0:
        arguments["sharding_strategy"] = _NOT_HYBRID.get(asked, asked)
        arguments["process_group"] = groups.same
    else:
        is_zero2 = asked is ShardingStrategy._HYBRID_SHARD_ZERO2
        arguments["sharding_strategy"] = asked if is_zero2 else ShardingStrategy.HYBRID_SHARD
        arguments["process_group"] = (groups.shard, groups.replicas)


def _bare_experts(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield (parent, name) of each module of experts below `module` that is not yet in an FSDP unit."""
    for name, child in module.named_children():
        if isinstance(child, FullyShardedDataParallel):
            continue
        if isinstance(child, OwnExperts):
            yield module, name
        else:
            yield from _bare_experts(child)


class _WithExperts(_Policy):
    """A policy that also selects experts; their units use the FSDP arguments of the policy, or else of the root."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def _run_policy(
        self, root_module: nn.Module, ignored_modules: set[nn.Module], root_kwargs: dict[str, Any]
    ) -> dict[nn.Module, dict[str, Any]]:
        units: dict[nn.Module, dict[str, Any]] = self._policy._run_policy(root_module, ignored_modules, root_kwargs)
        for module in root_module.modules():
            if isinstance(module, OwnExperts) and module not in ignored_modules:
                units.setdefault(module, dict(root_kwargs))
        return units

    def __repr__(self) -> str:
        return f"{self._policy!r} and experts"


def _with_experts(policy: Callable[..., bool]) -> Callable[..., bool]:
    def decide(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        below = module.modules() if recurse else (module,)  # `recurse`: FSDP asks whether to descend into the module
        if any(isinstance(one, OwnExperts) for one in below):
            return True
        return bool(policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel))

    return decide
