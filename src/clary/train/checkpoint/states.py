"""A program's state - models, optimizers, counters - as tensors and values by name, and back.

    model/layers.0.weight                   of a module; names omit the wrappers of DDP, torch.compile and checkpointing
    optimizer/state/model/layers.0.weight/exp_avg
    =optimizer/groups                       options of the optimizer, in the order of its groups
    =optimizer/parameters/...               names of the parameters in its groups (see `parameter_groups`)
    =loader                                 any other value, with holes in place of its tensors
    =loader/0                               the tensor of the first hole

Each parameter of an optimizer is matched with the same parameter of a module. The optimizer's state therefore uses the
module's names and fits another sharding of the model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from clary.train.checkpoint.parameter_groups import list_name
from clary.train.checkpoint.plans import VALUE_MARK

LEAST_LATE_BYTES = 64 * 1024
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # prefixes of torch.compile and activation checkpointing


@dataclass(frozen=True)
class Hole:
    """The place of a tensor in a value."""

    number: int


def flatten(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return all tensors and values by name, without a copy.

    Raises: ValueError for FullyShardedDataParallel, as `bare_module`.
    """
    flat: dict[str, Any] = {}
    names = parameter_names(state)
    for key, one in state.items():
        if isinstance(one, nn.Module):
            flat.update((f"{key}/{name}", value) for name, value in module_state(one).items())
        elif isinstance(one, Optimizer):
            for name, parameter in optimizer_parameters(one, names):
                for what, value in one.state.get(parameter, {}).items():
                    flat[f"{key}/state/{name}/{what}"] = value
            flat[f"{VALUE_MARK}{key}/groups"] = [_options(group) for group in one.param_groups]
            grouped = names_by_group(one, names)
            flat[list_name(key, grouped)] = grouped
        else:
            tensors: list[torch.Tensor] = []
            value = one.state_dict() if isinstance(one, Stateful) else one
            flat[f"{VALUE_MARK}{key}"] = take_apart(value, tensors)
            flat.update((f"{VALUE_MARK}{key}/{number}", tensor) for number, tensor in enumerate(tensors))
    return flat


def check_names(state: Mapping[str, Any]) -> None:
    """Refuse a state that is not a dict, or has keys that are not text, are empty, have a slash or begin with `=`.

    Raises: TypeError, ValueError.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"the state is {type(state).__name__}; expected a dict such as {{'model': model}}")
    for key in state:
        if not isinstance(key, str) or not key or "/" in key or key.startswith(VALUE_MARK):
            raise ValueError(f"the state has the key {key!r}; expected text without / that does not begin with =")


def bare_module(module: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of DDP and torch.compile.

    Raises: ValueError for FullyShardedDataParallel, whose parameters have no names of their own.
    """
    while isinstance(module, DistributedDataParallel) or hasattr(module, "_orig_mod"):
        module = module.module if isinstance(module, DistributedDataParallel) else module._orig_mod
    if any(isinstance(one, FullyShardedDataParallel) for one in module.modules()):
        raise ValueError(
            "FullyShardedDataParallel is not supported here: shard the model with torch.distributed.fsdp.fully_shard, "
            "or save it with torch.sagemaker's checkpoints"
        )
    return module


def module_state(module: nn.Module) -> dict[str, Any]:
    """Return a module's state by names without wrappers; the tensors are the module's own."""
    return {_bare(name): value for name, value in bare_module(module).state_dict().items()}


def parameter_names(state: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of parameters of all modules of a state, by id."""
    names: dict[int, str] = {}
    for key, one in state.items():
        if isinstance(one, nn.Module):
            for name, parameter in bare_module(one).named_parameters():
                names.setdefault(id(parameter), f"{key}/{_bare(name)}")
    return names


def optimizer_parameters(optimizer: Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield an optimizer's parameters with their names; a parameter of no module is named by its group and index."""
    for group, group_names in zip(optimizer.param_groups, names_by_group(optimizer, names), strict=True):
        yield from zip(group_names, group["params"], strict=True)


def names_by_group(optimizer: Optimizer, names: Mapping[int, str]) -> list[list[str]]:
    """Return the names of an optimizer's parameters by group, as `optimizer_parameters` names them."""
    return [
        [names.get(id(parameter), f"{at}.{number}") for number, parameter in enumerate(group["params"])]
        for at, group in enumerate(optimizer.param_groups)
    ]


def changed_by_step_alone(state: Mapping[str, Any], flat: Mapping[str, Any]) -> set[str]:
    """Return the names of tensors that only an optimizer's step changes: the optimizers' parameters and state.

    Tensors outside of host memory are left out; so are tensors smaller than LEAST_LATE_BYTES, since watching one costs
    more than copying it.

    Args:
        state: models, optimizers and values, by name.
        flat: the state, as `flatten` returned it.
    """
    owned: set[int] = set()
    for optimizer in optimizers(state):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owned.add(_address(parameter))
                owned.update(_address(one) for one in optimizer.state.get(parameter, {}).values())
    owned.discard(0)
    return {
        name
        for name, one in flat.items()
        if not name.startswith(VALUE_MARK) and _address(one) in owned and _num_bytes(one) >= LEAST_LATE_BYTES
    }


def optimizers(state: Mapping[str, Any]) -> list[Optimizer]:
    """Return the optimizers of a state."""
    return [one for one in state.values() if isinstance(one, Optimizer)]


def take_apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a value with holes in place of its tensors, and add the tensors to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return Hole(len(tensors) - 1)
    return _walk(value, lambda one: take_apart(one, tensors))


def put_together(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a value with its tensors in their holes."""
    return tensors[value.number] if isinstance(value, Hole) else _walk(value, lambda one: put_together(one, tensors))


def holes(value: Any, beside: Any) -> Iterator[tuple[int, Any]]:
    """Yield the number of each hole of a value, with the value at the same position of `beside`, or None."""
    if isinstance(value, Hole):
        yield value.number, beside
    elif type(value) in (dict, OrderedDict):
        for key, one in value.items():
            yield from holes(one, beside.get(key) if isinstance(beside, Mapping) else None)
    elif isinstance(value, list | tuple):
        for at, one in enumerate(value):
            yield from holes(one, beside[at] if isinstance(beside, list | tuple) and at < len(beside) else None)


def _walk(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to the members of a container; return any other value as it is."""
    if type(value) in (dict, OrderedDict):
        return type(value)((key, change(one)) for key, one in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(one) for one in value))
    if type(value) in (list, tuple):
        return type(value)(change(one) for one in value)
    return value


def _address(one: Any) -> int:
    """Return the address of a dense tensor in host memory; 0 for other values and for empty tensors."""
    if isinstance(one, DTensor):
        one = one.to_local()
    is_plain = type(one) in (torch.Tensor, nn.Parameter) and one.layout is torch.strided and one.is_cpu
    return one.data_ptr() if is_plain else 0


def _num_bytes(one: Any) -> int:
    return int((one.to_local() if isinstance(one, DTensor) else one).nbytes)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _bare(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
