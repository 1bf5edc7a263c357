"""States of sliced models, with the names and shapes of the whole model.

Where: `additions` wraps FSDP's methods in these functions: FSDP gathers its shards, then this module joins slices, one
tensor at a time. Parameter names stay Hugging Face's, since `transform` keeps the modules.

[Note: offloading] For a model on the CPU, FSDP (torch 2.6 to 2.13) offloads states without a copy, and then frees or
reuses their memory: the model's full state is read after it was freed, and the optimizer's states overwrite each other.
So on the CPU this module turns `offload_to_cpu` off, which makes FSDP copy.
Source: SageMaker developer guide, "Checkpointing using SMP", full checkpoints.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)

from clary.train.parallel.fsdp.checkpoint.sharded_state import (
    in_slices,
    in_units,
    is_in_shards,
    note_cuts,
)
from clary.train.parallel.fsdp.cuts import Cut, axes_of, clean_name, cuts_by_name
from clary.train.parallel.fsdp.experts.states import add_experts_of_others, drop_experts_of_others
from clary.train.parallel.fsdp.gradient_norm import axis_group
from clary.train.parallel.tensor.collectives import TensorGroup, reachable

State = dict[str, Any]


def whole_model_state(model: nn.Module, taken: State) -> State:
    """Join the slices in the model state that FSDP returned on this rank. Every rank calls it.

    With `rank0_only`, ranks other than the first of each slice group return an empty state.
    """
    cuts = cuts_by_name(model)
    settings = FullyShardedDataParallel.get_state_dict_type(model)
    if not axes_of(model) or settings.state_dict_type is not StateDictType.FULL_STATE_DICT:
        return taken
    config = settings.state_dict_config
    if not getattr(config, "translate_on_save", True):
        return taken
    for key in list(taken):
        cut = cuts.get(clean_name(key))
        if cut is not None:
            taken[key] = _joined(taken[key], cut, is_kept=_is_kept(config.rank0_only, cut))
    taken = add_experts_of_others(model, taken)
    if config.rank0_only and any(dist.get_rank(axis_group(axis)) for axis in axes_of(model)):
        return {}
    return taken


def sliced_model_state(model: nn.Module, whole: Mapping[str, Any]) -> State:
    """Cut the whole tensors of a model state for this rank, so that FSDP can load it; slices stay as they are."""
    cuts = cuts_by_name(model)
    own = drop_experts_of_others(model, whole)
    return {key: _sliced(value, cuts.get(clean_name(key))) for key, value in own.items()}


def whole_optimizer_state(model: Any, taken: State, *, is_rank0_only: bool) -> State:
    """Join the slices in the optimizer state that FSDP returned on this rank. Every rank calls it.

    Args:
        taken: as `optim_state_dict` of FSDP returns it, by names of parameters.
        is_rank0_only: whether only the first rank of the slice groups and of FSDP's group gets the state; other ranks
            return an empty state.

    Raises: ValueError if a parameter's state has a shape that cannot be joined, such as a factored moment.
    """
    cuts = cuts_by_name(model)
    state = {}  # a new dict: without sharding FSDP returns the optimizer's own
    for key, held in taken.get("state", {}).items():
        cut = cuts.get(clean_name(key)) if isinstance(key, str) else None
        state[key] = held if cut is None else _whole_moments(key, held, cut, is_rank0_only=is_rank0_only)
    state = add_experts_of_others(model, state)
    groups = [axis_group(axis) for axis in axes_of(model)]
    if is_rank0_only and any(dist.get_rank(group) for group in (*groups, model.process_group)):
        return {}
    return {**taken, "state": state} if "state" in taken else taken


def sliced_optimizer_state(model: nn.Module, whole: State) -> State:
    """Cut an optimizer's state, keyed by parameter names, for this rank, so that FSDP can load it.

    The argument is not changed.
    """
    cuts = cuts_by_name(model)
    state = {
        key: {name: _sliced(value, cuts.get(clean_name(key))) for name, value in held.items()}
        if isinstance(key, str) and isinstance(held, Mapping)
        else held
        for key, held in drop_experts_of_others(model, whole.get("state", {})).items()
    }
    return {**whole, "state": state}


def state_additions() -> dict[str, Any]:
    """Return the replacements of FSDP's state methods, by method name."""
    fsdp = FullyShardedDataParallel

    def state_dict(self: Any, *args: Any, **kwargs: Any) -> State:
        if args or kwargs.get("destination") is not None:  # an inner unit, called by its parent module
            taken: State = nn.Module.state_dict(self, *args, **kwargs)
            return taken
        note_cuts(self)
        config = FullyShardedDataParallel.get_state_dict_type(self).state_dict_config
        with _changed(config, {"offload_to_cpu": False} if _is_on_cpu(self) else {}):
            taken = nn.Module.state_dict(self, **kwargs)
        return in_slices(self, taken) if is_in_shards(self) else whole_model_state(self, taken)

    def load_state_dict(self: Any, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if is_in_shards(self):
            state_dict = in_units(self, state_dict)
        elif axes_of(self):
            state_dict = sliced_model_state(self, state_dict)
        return nn.Module.load_state_dict(self, state_dict, *args, **kwargs)

    return {
        "state_dict": functools.wraps(nn.Module.state_dict)(state_dict),
        "load_state_dict": functools.wraps(nn.Module.load_state_dict)(load_state_dict),
        "optim_state_dict": _taking(fsdp.optim_state_dict),
        "full_optim_state_dict": _taking_all(fsdp.full_optim_state_dict),
        "optim_state_dict_to_load": _giving(fsdp.optim_state_dict_to_load, "optim_state_dict"),
        "shard_full_optim_state_dict": _giving(fsdp.shard_full_optim_state_dict, "full_optim_state_dict"),
        "scatter_full_optim_state_dict": _refusing(fsdp.scatter_full_optim_state_dict),
        "sharded_optim_state_dict": _refusing(fsdp.sharded_optim_state_dict),
        "flatten_sharded_optim_state_dict": _refusing(fsdp.flatten_sharded_optim_state_dict),
    }


def _taking(original: Any) -> Any:
    """Wrap `optim_state_dict` so that it joins slices."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def take(*args: Any, **kwargs: Any) -> State:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        model = bound.arguments["model"]
        note_cuts(model)
        config = FullyShardedDataParallel.get_state_dict_type(model).optim_state_dict_config
        is_rank0_only = getattr(config, "rank0_only", False)
        axes = axes_of(model)
        changes = {"offload_to_cpu": False} if _is_on_cpu(model) else {}
        if axes == {"tp"} and _shows_parameters(model):
            bound.arguments["group"] = bound.arguments["group"] or model.process_group
        elif axes:  # FSDP expects global rank 0 in the group, but not every group has it
            changes["rank0_only"] = False
        with _changed(config, changes):
            taken: State = original(*bound.args, **bound.kwargs)
        if is_in_shards(model):
            return {**taken, "state": in_slices(model, taken["state"])}
        if not axes:
            return taken
        return whole_optimizer_state(model, taken, is_rank0_only=is_rank0_only)

    return staticmethod(take)


def _taking_all(original: Any) -> Any:
    """Wrap `full_optim_state_dict` so that it calls `optim_state_dict` for cut models and on the CPU."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def take(*args: Any, **kwargs: Any) -> State:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        model, optimizer = given.arguments["model"], given.arguments["optim"]
        fsdp = FullyShardedDataParallel
        if not axes_of(model) and not _is_on_cpu(model):
            taken: State = original(*args, **kwargs)
            return taken
        config = FullOptimStateDictConfig(rank0_only=given.arguments["rank0_only"])
        with fsdp.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), config):
            made: State = fsdp.optim_state_dict(model, optimizer, group=given.arguments["group"])
            return made

    return staticmethod(take)


def _giving(original: Any, argument: str) -> Any:
    """Wrap a loading method, so that it first cuts the whole optimizer state in its parameter `argument`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def give(*args: Any, **kwargs: Any) -> State:
        bound = signature.bind(*args, **kwargs)
        model = bound.arguments["model"]
        bound.apply_defaults()
        if bound.arguments.get("group", model) is None and axes_of(model) == {"tp"} and _shows_parameters(model):
            bound.arguments["group"] = model.process_group
        given = bound.arguments[argument]
        if is_in_shards(model):
            bound.arguments[argument] = {**given, "state": in_units(model, given["state"])}
        elif axes_of(model):
            bound.arguments[argument] = sliced_optimizer_state(model, given)
        made: State = original(*bound.args, **bound.kwargs)
        return made

    return staticmethod(give)


def _refusing(original: Any) -> Any:
    """Wrap a method so that it refuses cut models."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def refuse(*args: Any, **kwargs: Any) -> State:
        if axes_of(signature.bind(*args, **kwargs).arguments["model"]):
            raise ValueError(_no_shards(original.__name__))
        made: State = original(*args, **kwargs)
        return made

    return staticmethod(refuse)


@contextmanager
def _changed(config: Any, changes: Mapping[str, bool]) -> Iterator[None]:
    """Set existing attributes of a state's configuration within a block, then restore them."""
    were = {name: getattr(config, name) for name in changes if hasattr(config, name)}
    for name in were:
        setattr(config, name, changes[name])
    try:
        yield
    finally:
        for name, value in were.items():
            setattr(config, name, value)


def _is_on_cpu(model: nn.Module) -> bool:
    """Return whether FSDP computes on the CPU; see [Note: offloading]."""
    units = FullyShardedDataParallel.fsdp_modules(model)
    return bool(units) and units[0].compute_device.type == "cpu"


def _shows_parameters(model: nn.Module) -> bool:
    return all(unit._use_orig_params for unit in FullyShardedDataParallel.fsdp_modules(model))


def _no_shards(call: str) -> str:
    return (
        f"{call}: states in FSDP's own shards do not say of which slice of a layer they are; save and load models "
        "with layers that are cut with sm_state_dict_type(model, SMStateDictType.SM_LOCAL_STATE_DICT), or as "
        "FULL_STATE_DICT with optim_state_dict and optim_state_dict_to_load, on every rank"
    )


def _whole_moments(key: str, held: State, cut: Cut, *, is_rank0_only: bool) -> State:
    whole = dict(held)
    for name, value in held.items():
        if isinstance(value, torch.Tensor) and value.dim():
            if value.dim() <= cut.dim or value.shape[cut.dim] * _group(cut).size != cut.length:
                raise ValueError(
                    f"optimizer state {name} of {key} has shape {tuple(value.shape)}, which is not that of the "
                    "parameter's slice, so it cannot be joined into a whole: save it with sm_state_dict_type"
                )
            whole[name] = _joined(value, cut, is_kept=_is_kept(is_rank0_only, cut))
    return whole


def _group(cut: Cut) -> TensorGroup:
    group = axis_group(cut.axis)
    return TensorGroup(group, dist.get_rank(group), dist.get_world_size(group))


def _is_kept(is_rank0_only: bool, cut: Cut) -> bool:
    return not is_rank0_only or dist.get_rank(axis_group(cut.axis)) == 0


def _joined(own: torch.Tensor, cut: Cut, *, is_kept: bool) -> torch.Tensor:
    """Gather the whole tensor of a slice, on the slice's device; return the slice itself if not `is_kept`."""
    group = _group(cut)
    sent = own.detach().to(reachable(group, own.device)).contiguous()
    slices = [torch.empty_like(sent) for _ in range(group.size)]
    dist.all_gather(slices, sent, group=group.process_group)
    return cut.join(slices).to(own.device) if is_kept else own


def _sliced(value: Any, cut: Cut | None) -> Any:
    """Return this rank's slice of a whole tensor, and any other value unchanged."""
    if cut is None or not isinstance(value, torch.Tensor) or value.dim() <= cut.dim:
        return value
    group = _group(cut)
    return cut.of(value, group.rank, group.size) if value.shape[cut.dim] == cut.length else value
