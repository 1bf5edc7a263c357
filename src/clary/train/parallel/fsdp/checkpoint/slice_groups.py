"""The ranks that save and load a sharded state of a cut model together: the holders of one slice's shards.

Where: `additions` wraps the functions with which torch.distributed.checkpoint begins to save or load; `saving` calls
`group_of` itself. Scripts pass the group over which FSDP shards the model, and its lowest rank as the coordinator.

[Note: alone] If every replica of a slice is one rank, the first replica saves alone, whether scripts save on that rank
or on all ranks: so no rank waits for a missing rank, and no two ranks write the same files. Each rank loads alone.

[Note: coordinator] `coordinator_rank` is a global rank. Newer versions of torch read it as a rank in the group, but a
group of global ranks 2 and 3 has no rank 2. Any rank of the group may plan, if all its ranks name the same one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from clary.train.parallel.fsdp.checkpoint.sharded_state import slice_group
from clary.train.parallel.fsdp.gradient_norm import axis_group
from clary.train.parallel.fsdp.state import state

ADDITIONS = ((state_dict_saver, "_save_state_dict"), (state_dict_loader, "_load_state_dict"))


def check() -> None:
    """Check that torch has every function to wrap.

    Raises: RuntimeError naming a missing function.
    """
    for module, name in ADDITIONS:
        if not callable(getattr(module, name, None)):
            raise RuntimeError(f"torch.sagemaker: {module.__name__} has no {name}; torch 2.6 to 2.13 have it")


def with_groups_of_slices(original: Any) -> Any:
    """Wrap a saving or loading function of torch, so that it uses the slices' groups for states of slices."""
    signature = inspect.signature(original)
    is_saving = "storage_writer" in signature.parameters

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs)
        arguments.apply_defaults()
        given = arguments.arguments
        if dist.is_initialized() and not given.get("no_dist"):
            group = group_of(given["state_dict"], given["process_group"])
            if group is not given["process_group"]:
                given["process_group"], given["coordinator_rank"] = group, 0
            given["coordinator_rank"] = _number_in(group, given["coordinator_rank"])
            if is_saving and is_saved_by_another(given["state_dict"]):
                return None
        return original(*arguments.args, **arguments.kwargs)

    return call


def group_of(saved: Mapping[str, Any], group: Any) -> Any:
    """Return the group that saves or loads a state when the script passes `group`; None is all ranks.

    Raises: ValueError if ranks of the group hold different slices, whose tensors have the same names.
    """
    groups = list(_groups_in(saved))
    alone = _alone_among(groups)
    if state.expert_groups is not None and any(one is state.expert_groups.shard for one in groups):
        return state.expert_groups.shard
    peers = set(_ranks(axis_group("tp"))) if state.tp_size > 1 else set()
    is_of_slices = any(len(peers.intersection(_ranks(one))) == 1 for one in groups)
    if is_of_slices and len(peers.intersection(_ranks(group))) > 1:
        raise ValueError(
            f"a state in shards was to be saved or loaded by ranks {_ranks(group)}, of which {sorted(peers)} hold "
            f"different slices under the same names: give model.process_group as process_group, and each slice a "
            f"folder of its own, such as tp{state.tp_size}-{state.tp_rank}"
        )
    return group if alone is None else alone


def is_saved_by_another(saved: Mapping[str, Any]) -> bool:
    """Return whether a lower rank holds and saves the same slice; see [Note: alone]."""
    return state.ranker.get_rep_rank(state.rank) > 0 and _alone_among(list(_groups_in(saved))) is not None


def _alone_among(groups: list[Any]) -> Any:
    """Return this rank's slice group if it has one rank and a tensor is sharded over it; else None."""
    own = slice_group(None)
    return own if own is not None and any(one is own for one in groups) and len(_ranks(own)) == 1 else None


def _groups_in(saved: Any) -> Iterator[Any]:
    """Yield the groups over which tensors of a state are sharded, with repeats."""
    if isinstance(saved, Mapping):
        for one in saved.values():
            yield from _groups_in(one)
    elif isinstance(saved, ShardedTensor):
        yield saved._process_group


def _ranks(group: Any) -> list[int]:
    return list(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))


def _number_in(group: Any, rank: int) -> int:
    """Return the coordinator's rank in the group; see [Note: coordinator]."""
    ranks = _ranks(group)
    return ranks.index(rank) if rank >= len(ranks) and rank in ranks else rank
