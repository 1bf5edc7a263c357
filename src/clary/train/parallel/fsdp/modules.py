"""Helper functions on groups and modules, for scripts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def get_global_ranks(process_group: Any = None) -> list[int]:
    """Return the global ranks of a group, in the group's order; None is all ranks."""
    return list(dist.get_process_group_ranks(dist.group.WORLD if process_group is None else process_group))


def empty_module_params(
    module: nn.Module, device: torch.device | str | int | None = None, recurse: bool = False
) -> nn.Module:
    """Give a module's parameters memory without values on a device; return the module. Its buffers are not changed.

    Parameters that are shared within the module stay shared. The memory holds NaN, so that a parameter that is used
    without values shows.

    Args:
        device: device of the new parameters, which are new objects. None is each parameter's own device, and
            `default_device` for parameters on the meta device.
        recurse: whether to replace the parameters of all modules below `module` too.
    """
    made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # the old one too, since ids of freed objects recur
    for part in module.modules() if recurse else [module]:
        for name, parameter in list(part._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in made:
                at = (default_device() if parameter.is_meta else parameter.device) if device is None else device
                empty = torch.full_like(parameter, unset(parameter.dtype), device=at, requires_grad=False)
                made[id(parameter)] = parameter, nn.Parameter(empty, parameter.requires_grad)
            part._parameters[name] = made[id(parameter)][1]
    return module


def move_buffers_to_device(module: nn.Module, device: torch.device | str | int, recurse: bool = False) -> nn.Module:
    """Move a module's buffers to a device; return the module. Parameters stay where they are.

    Args:
        device: target device; buffers already on it stay the same objects.
        recurse: whether to move the buffers of all modules below `module` too.
    """
    for part in module.modules() if recurse else [module]:
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.to(device)
    return module


def default_device() -> torch.device:
    """Return the current GPU, or the CPU on a machine without GPUs."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def unset(dtype: torch.dtype) -> float | int | bool:
    """Return the value that marks memory of a dtype as not initialised."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return False if dtype is torch.bool else int(torch.iinfo(dtype).max)


def is_unset(tensor: torch.Tensor) -> bool:
    """Return whether a tensor of any shape has elements and all hold the value of `unset`."""
    if tensor.numel() == 0:
        return False
    mark = unset(tensor.dtype)
    return bool((tensor.isnan() if mark != mark else tensor == mark).all())  # only NaN differs from itself
