"""Autocast around torch.autograd functions, inside which autocast does not apply as it does outside.

Where: functions that compute matrix products themselves. They cast their inputs here before `apply`, where autograd
sees the cast, and compute in their inputs' dtypes: within `exact` in forward passes, which autocast would reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def cast_as_autocast(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Cast tensors to autocast's dtype, if autocast is on for the first one's device; float64 stays, as in torch."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [one.to(dtype) if one.is_floating_point() and one.dtype != torch.float64 else one for one in tensors]


def exact(tensor: torch.Tensor) -> torch.autocast:
    """Return a block in which products on the device of a tensor of any shape have the dtypes of their factors."""
    return torch.autocast(tensor.device.type, enabled=False)
