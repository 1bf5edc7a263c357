"""Helper functions on groups and modules, for scripts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def get_global_ranks(process_group: Any = None) -> list[int]:
    """Return the global ranks of a group, in the group's order; None is all ranks."""
    return list(dist.get_process_group_ranks(dist.group.WORLD if process_group is None else process_group))


def empty_module_params(module: nn.Module, device: torch.device | str, recurse: bool = False) -> None:
    """Give a module's parameters uninitialised memory on a device; its buffers are not changed.

    Args:
        device: device of the new parameters, which are new objects.
        recurse: whether to replace the parameters of all modules below `module` too.
    """
    for part in module.modules() if recurse else [module]:
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                empty = torch.empty_like(parameter, device=device, requires_grad=False)
                part._parameters[name] = nn.Parameter(empty, parameter.requires_grad)


def move_buffers_to_device(module: nn.Module, device: torch.device | str, recurse: bool = False) -> None:
    """Move a module's buffers to a device; parameters stay where they are.

    Args:
        device: target device; buffers already on it stay the same objects.
        recurse: whether to move the buffers of all modules below `module` too.
    """
    for part in module.modules() if recurse else [module]:
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.to(device)
