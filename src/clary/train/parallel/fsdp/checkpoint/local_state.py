"""Local states: each rank saves the tensors that it holds in memory, without communication.

Where: scripts enter `sm_state_dict_type` around `state_dict` and `load_state_dict` of model and optimizer. Keys contain
the shard's number and the number of shards, so a shard that several ranks hold is saved once, and loading with another
number of shards raises an error that names the keys. To change that number, save `StateDictType.SHARDED_STATE_DICT` or
the full state.

    layers.0.weight@2of4          model: the elements of this parameter in shard 2
    state: {17@2of4: {...}}       optimizer: the state of its parameter number 17
    layers.0.weight@2of4tp1of2    with layers cut over a tensor group: shard 2 of slice 1 of 2

[Note: empty] If a rank holds no element of a parameter, it saves neither the parameter nor its optimizer state.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    OptimStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp._runtime_utils import _reshard

from clary.train.parallel.fsdp.cuts import Axis, clean_name, cut_of
from clary.train.parallel.fsdp.gradient_norm import axis_group


class SMStateDictType(enum.Enum):
    """Kinds of states."""

    SM_LOCAL_STATE_DICT = enum.auto()


@contextmanager
def sm_state_dict_type(
    model: nn.Module,
    state_dict_type: SMStateDictType | StateDictType,
    state_dict_config: StateDictConfig | None = None,
    optim_state_dict_config: OptimStateDictConfig | None = None,
) -> Iterator[None]:
    """Use local states of `model` and of all optimizers in the process within a block.

    Such blocks must not be nested, and only one thread may use them.

    Args:
        state_dict_type: kind of state; one of torch's kinds has the effect of
            `FullyShardedDataParallel.state_dict_type`.
        state_dict_config: configuration for one of torch's kinds; so is `optim_state_dict_config`.

    Raises: ValueError for another kind, or if a configuration is given with local states.
    """
    if isinstance(state_dict_type, StateDictType):
        with FullyShardedDataParallel.state_dict_type(
            model, state_dict_type, state_dict_config, optim_state_dict_config
        ):
            yield
        return
    if state_dict_type is not SMStateDictType.SM_LOCAL_STATE_DICT:
        raise ValueError(
            f"sm_state_dict_type got {state_dict_type!r}; expected SMStateDictType.SM_LOCAL_STATE_DICT or one of "
            "torch's StateDictType"
        )
    if state_dict_config is not None or optim_state_dict_config is not None:
        raise ValueError("sm_state_dict_type: local states take no configuration; leave it out")
    words = _words_by_parameter(model)
    optimizer_class: Any = torch.optim.Optimizer
    give, take = optimizer_class.state_dict, optimizer_class.load_state_dict
    had = {name: vars(model)[name] for name in ("state_dict", "load_state_dict") if name in vars(model)}
    model.state_dict = lambda *_, **__: model_state(model)
    model.load_state_dict = lambda state, *_, **__: load_model_state(model, state)
    optimizer_class.state_dict = lambda self: _optimizer_state(self, give(self), words)
    optimizer_class.load_state_dict = lambda self, state: take(self, _whole_optimizer_state(self, state, words))
    try:
        yield
    finally:
        optimizer_class.state_dict, optimizer_class.load_state_dict = give, take
        for name in ("state_dict", "load_state_dict"):
            del vars(model)[name]
        vars(model).update(had)


@torch.no_grad()
def model_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return this rank's elements of parameters and its persistent buffers; the tensors share the model's memory.

    Raises: RuntimeError between forward and backward pass if a unit is not resharded in between.
    """
    words = _words_by_parameter(model)
    for unit in model.modules():
        if isinstance(unit, FullyShardedDataParallel) and unit._handle is not None and _is_whole(unit._handle):
            _reshard(unit, unit._handle, True)
    state = {
        f"{clean_name(name)}{words[id(parameter)]}": parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.numel()
    }
    persistent = {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in model.named_modules()
        for name in part._buffers
        if name not in part._non_persistent_buffers_set
    }
    return state | {clean_name(name): one for name, one in model.named_buffers() if name in persistent}


@torch.no_grad()
def load_model_state(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load a state into the model.

    State after failure: unchanged.
    Raises: ValueError naming missing keys, unknown keys and keys of another size.
    """
    own = model_state(model)
    differ = sorted(own.keys() ^ state.keys())
    differ = differ or [key for key in own if own[key].shape != state[key].shape]
    if differ:
        ends = ", ".join(sorted(set(_words_by_parameter(model).values())))
        raise ValueError(
            f"local state: {len(differ)} keys differ between state and model, such as "
            f"{', '.join(differ[:5])}; the model's keys end with {ends}: the state was saved by another "
            "model, or with other degrees"
        )
    for key, tensor in own.items():
        tensor.copy_(state[key])


@torch.no_grad()
def init_optim_state(optimizer: torch.optim.Optimizer, skip_empty_param: bool = False) -> None:
    """Create an optimizer's state as its first step does, so that a state can be loaded into it.

    Parameters stay unchanged: a step with learning rate 0 runs, and the step count is reset. An optimizer that has a
    state keeps it.

    Args:
        skip_empty_param: create no state for parameters without an element on this rank.

    Raises: RuntimeError if there are gradients, which would be lost.
    """
    if optimizer.state:
        return
    parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    if any(one.grad is not None for one in parameters):
        raise RuntimeError("init_optim_state: gradients are there; call it before backward, or after zero_grad")
    rates = [(group["lr"], group.get("weight_decay")) for group in optimizer.param_groups]
    values = [one.detach().clone() for one in parameters]  # some optimizers change parameters even at learning rate 0
    try:
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            if "weight_decay" in group:  # some optimizers add weight decay to the gradients that enter their moments
                group["weight_decay"] = 0.0
        for one in parameters:
            if one.numel() or not skip_empty_param:
                one.grad = torch.zeros_like(one)
        optimizer.step()
    finally:
        for group, (rate, decay) in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
            if "weight_decay" in group:
                group["weight_decay"] = decay
        for one, value in zip(parameters, values, strict=True):
            one.copy_(value)
            one.grad = None
    for held in optimizer.state.values():
        if isinstance(held.get("step"), torch.Tensor):
            held["step"].zero_()
        elif "step" in held:
            held["step"] = 0


def _optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any], words: dict[int, str]) -> dict[str, Any]:
    parameters = _parameters(optimizer)
    held = {
        f"{at}{words.get(id(parameters[at]), '')}": one for at, one in state["state"].items() if parameters[at].numel()
    }
    return {**state, "state": held}


def _whole_optimizer_state(
    optimizer: torch.optim.Optimizer, state: dict[str, Any], words: dict[int, str]
) -> dict[str, Any]:
    parameters = _parameters(optimizer)
    held = {}
    for key, one in state["state"].items():
        at = int(str(key).partition("@")[0])
        own = words.get(id(parameters[at]), "") if at < len(parameters) else None
        if key != f"{at}{own}":
            raise ValueError(
                f"local state of an optimizer: {key} is of another shard, or of another optimizer; parameter "
                f"{at} of this rank has the suffix {own}"
            )
        held[at] = one
    return {**state, "state": held}


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """Return an optimizer's parameters in the order of their numbers in its state."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def _is_whole(handle: Any) -> bool:
    """Return whether a unit is not resharded, as some are after a forward pass without a backward pass."""
    shard = getattr(handle.flat_param, "_local_shard", None)  # None before the first forward pass
    if shard is None or not handle.uses_sharded_strategy:
        return False
    if getattr(handle, "_skipped_use_sharded_views", False):
        raise RuntimeError("local state: a forward pass waits for its backward pass; take the state after that")
    return bool(handle.flat_param.data_ptr() != shard.data_ptr())


def _words_by_parameter(model: nn.Module) -> dict[int, str]:
    """Return, by parameter id, the suffix of each parameter's key: the parameter's shard and slice."""
    words = {}
    for module in model.modules():  # these suffixes are final for parameters outside of FSDP
        for name, parameter in module._parameters.items():
            cut = cut_of(module, name)
            experts = _axis_words("ep") if cut is not None and cut.axis == "ep" else ""
            words[id(parameter)] = "@0of1" + _axis_words("tp") + experts
    for unit in model.modules():
        if not isinstance(unit, FullyShardedDataParallel) or unit._handle is None:
            continue
        flat = unit._handle.flat_param
        is_cut = unit.sharding_strategy is not ShardingStrategy.NO_SHARD
        shard = f"@{unit.process_group.rank()}of{unit.process_group.size()}" if is_cut else "@0of1"
        cuts = [cut_of(module, name) for name, module, _ in flat._param_infos]
        has_experts = any(cut is not None and cut.axis == "ep" for cut in cuts)
        shard += _axis_words("tp") + (_axis_words("ep") if has_experts else "")
        for parameter in (flat, *(flat._params or ())):
            words[id(parameter)] = shard
    return words


def _axis_words(axis: Axis) -> str:
    group = axis_group(axis)
    return "" if group is None else f"{axis}{dist.get_rank(group)}of{dist.get_world_size(group)}"
