"""Sharded states of cut models: each slice lies in FSDP's shards, and no tensor is gathered.

Where: `full_state` calls these functions around FSDP's methods; `slice_groups` and `sharded_optimizer` use the groups.
A checkpoint has a folder for each slice, which the ranks that hold its shards save:

    tp2-0/    __0_0.distcp  __1_0.distcp  .metadata      shards 0 and 1 of slice 0 of 2
    tp2-1/    __0_0.distcp  __1_0.distcp  .metadata

If experts are spread over ranks (expert parallelism), FSDP shards other parameters over more ranks than experts, across
ranks of different slices. `in_slices` moves them to shards over the ranks of one slice, so that the slice's folder is
complete; `in_units` moves them back on loading.

[Note: whole units] For units that FSDP does not shard, torch returns whole tensors. The experts are such units if each
rank of a block holds different experts. If nothing is sharded (hybrid_shard_degree 1), the group of a model is its
replicas, and scripts save on the first replica only, which would wait for the other replicas until the timeout. So
tensors are sharded over the ranks that together hold a slice once, here a single rank, and `slice_groups` lets that
rank save alone. FSDP returns moments of flat parameters as shards over the replicas, so the first replica alone would
save only its own shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._state_dict_utils import _all_gather_sharded_tensor
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp._shard_utils import _create_chunk_sharded_tensor

from clary.train.parallel.fsdp.cuts import axes_of, clean_name, marks_by_name
from clary.train.parallel.fsdp.experts.states import drop_experts_of_others
from clary.train.parallel.fsdp.state import state

State = dict[str, Any]


def is_in_shards(model: nn.Module) -> bool:
    """Return whether the script requests states of a model in FSDP's shards."""
    return FullyShardedDataParallel.get_state_dict_type(model).state_dict_type is StateDictType.SHARDED_STATE_DICT


def slice_group(given: Any) -> Any:
    """Return the group of ranks that hold shards of this rank's slice; `given` if no degree required such a group."""
    if state.expert_groups is not None:
        return state.expert_groups.shard
    return given if state.shard_process_group is None else state.shard_process_group


def note_cuts(model: nn.Module) -> None:
    """Record how this model is cut, for its slice folders, if the script requests sharded states."""
    if is_in_shards(model) and axes_of(model):
        state.slice_cuts = {**state.slice_cuts, **marks_by_name(model)}


def in_slices(model: nn.Module, taken: State) -> State:
    """Convert a sharded state of FSDP to shards over the ranks of one slice. Every rank calls it.

    Args:
        taken: state by names of parameters; values are tensors, or dicts of tensors as in an optimizer's state.
    """
    group = slice_group(None)
    if _is_whole(model) and group is not None:
        return {key: _put_in_shards(value, group) for key, value in taken.items()}
    if "ep" not in axes_of(model):
        return taken
    return {key: _moved(value, group) for key, value in taken.items()}


def in_units(model: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a state of `in_slices` back to FSDP's shards for loading. Every rank calls it."""
    if "ep" not in axes_of(model) and not _is_whole(model):
        return given
    own = drop_experts_of_others(model, given)
    if _is_whole(model):  # unsharded FSDP would read them as shards over the replicas
        return {key: _gathered(value) for key, value in own.items()}
    experts = marks_by_name(model)
    is_whole = state.expert_groups is not None and state.expert_groups.num_shards == 1
    for key, value in own.items():
        if clean_name(key) not in experts:
            own[key] = _moved(value, model.process_group)
        elif is_whole:
            own[key] = _gathered(value)
    return own


def empty_shards(size: torch.Size, dtype: torch.dtype, device: torch.device, group: Any) -> ShardedTensor:
    """Return a tensor without values, in shards over a group.

    Args:
        size: shape of the whole tensor.
        device: device of the shards.
        group: process group whose ranks hold one shard each, cut along dimension 0.
    """
    return _shards(torch.empty((), dtype=dtype, device=device).expand(size), group)  # takes one element of memory


def _is_whole(model: nn.Module) -> bool:
    """Return whether FSDP shards no unit of a model; see [Note: whole units]."""
    units: list[Any] = [one for one in FullyShardedDataParallel.fsdp_modules(model) if one._handle is not None]
    return bool(units) and not any(one._handle.uses_sharded_strategy for one in units)


def _put_in_shards(value: Any, group: Any) -> Any:
    """Shard a tensor over a group; return scalars and other values unchanged. Every rank calls it."""
    if isinstance(value, Mapping):
        return {key: _put_in_shards(one, group) for key, one in value.items()}
    if isinstance(value, ShardedTensor):  # moments of flat parameters, sharded over the replicas
        return _moved(value, group)
    return _shards(value, group) if isinstance(value, torch.Tensor) and value.dim() > 0 else value


def _gathered(value: Any) -> Any:
    """Gather a sharded tensor; return other values unchanged."""
    if isinstance(value, Mapping):
        return {key: _gathered(one) for key, one in value.items()}
    return _all_gather_sharded_tensor(value, value._process_group) if isinstance(value, ShardedTensor) else value


def _moved(value: Any, group: Any) -> Any:
    """Reshard a sharded tensor over another group; return other values unchanged."""
    if isinstance(value, Mapping):
        return {key: _moved(one, group) for key, one in value.items()}
    if not isinstance(value, ShardedTensor) or value._process_group is group:
        return value
    return _shards(_gathered(value), group)


def _shards(whole: torch.Tensor, group: Any) -> ShardedTensor:
    num_devices = max(torch.cuda.device_count(), 1)
    return _create_chunk_sharded_tensor(whole, dist.get_rank(group), dist.get_world_size(group), num_devices, group)
