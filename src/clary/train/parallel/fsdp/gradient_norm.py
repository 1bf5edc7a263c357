"""The norm of a model's gradients over all ranks, and clipping by this norm.

[Note: counting once] A gradient element lies on one rank of the group over which FSDP shards its unit, or on all ranks
of the group if the unit is not sharded. A parameter that is cut over an axis of parallelism (tensor, expert) lies in
slices on the ranks of this axis; other parameters are equal on all these ranks. So the powers of elements are summed
separately for each pair of a unit's group and an axis, only over the ranks that hold different elements. Then the sums
are added.
Source: arXiv 1909.08053 section 3 (norms over a tensor group); torch's `FullyShardedDataParallel.clip_grad_norm_`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from clary.train.parallel.fsdp.cuts import Axis, Cut, cut_of
from clary.train.parallel.fsdp.state import state

_EPSILON = 1e-6  # added to the norm in the divisor, as torch does


@dataclass(frozen=True)
class _Piece:
    """A part of a gradient on this rank.

    Args:
        group: group over which it is sharded, or None.
        cut: cut of the parameter; None if it is whole.
    """

    gradient: torch.Tensor
    group: Any
    cut: Cut | None


def clip_gradients(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scale gradients in place so that their norm over all ranks is at most `max_norm`. Every rank calls it.

    Args:
        norm_type: p of the norm; infinity for the largest element.

    Returns: the norm before clipping, a scalar, in the widest dtype among the gradients.
    """
    max_norm, norm_type = float(max_norm), float(norm_type)
    is_largest = math.isinf(norm_type)
    device = _device(model)
    sums = {key: torch.zeros((), device=device) for key in _keys(model)}
    pieces = list(_pieces(model))
    for piece in pieces:
        norm = torch.linalg.vector_norm(piece.gradient, norm_type, dtype=torch.float32).to(device)
        key = (piece.group, None if piece.cut is None else piece.cut.axis)
        sums[key] = torch.maximum(sums[key], norm) if is_largest else sums[key] + norm**norm_type
    operation = dist.ReduceOp.MAX if is_largest else dist.ReduceOp.SUM
    total = torch.zeros((), device=device)
    for (group, axis), one in sums.items():  # in the order of the model's modules, which is the same on all ranks
        for over in (group, None if axis is None else axis_group(axis)):
            if over is not None and dist.get_world_size(over) > 1:
                dist.all_reduce(one, operation, group=over)
        total = torch.maximum(total, one) if is_largest else total + one
    norm = total if is_largest else total ** (1.0 / norm_type)
    factor = torch.clamp(max_norm / (norm + _EPSILON), max=1.0)
    for gradient in {id(one): one for one in _tensors(model)}.values():
        gradient.mul_(factor.to(gradient.device, gradient.dtype))
    dtypes = [piece.gradient.dtype for piece in pieces]
    widest = dtypes[0] if dtypes else torch.float32
    for dtype in dtypes:
        widest = torch.promote_types(widest, dtype)
    return norm.to(widest)


def axis_group(axis: Axis) -> Any:
    """Return the group whose ranks hold the slices of a parameter cut over an axis; None for degree 1."""
    return state.tp_process_group if axis == "tp" else state.ep_process_group


def _device(model: nn.Module) -> torch.device:
    """Return the device on which sums of this model can be reduced."""
    if isinstance(model, FullyShardedDataParallel):
        return torch.device(model.compute_device)
    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return next((one.device for one in model.parameters()), torch.device("cpu"))


def _units(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yield each flat parameter's handle, and the group over which it is sharded, or None."""
    for unit in FullyShardedDataParallel.fsdp_modules(model):
        if unit._handle is not None:
            yield unit._handle, unit.process_group if unit._handle.uses_sharded_strategy else None


def _keys(model: nn.Module) -> list[tuple[Any, Axis | None]]:
    """Return the keys of all sums, equal on every rank, including sums to which this rank adds nothing."""
    keys: dict[tuple[Any, Axis | None], None] = {}
    for handle, group in _units(model):
        for name, module, _ in handle.flat_param._param_infos:
            cut = cut_of(module, name)
            keys[group, None if cut is None else cut.axis] = None
    for _, cut in _loose(model):
        keys[None, None if cut is None else cut.axis] = None
    return list(keys)


def _pieces(model: nn.Module) -> Iterator[_Piece]:
    for handle, group in _units(model):
        flat = handle.flat_param
        for at, (name, module, _) in enumerate(flat._param_infos):
            cut = cut_of(module, name)
            if handle._use_orig_params:
                gradient = flat._params[at].grad
            else:
                shard = flat._shard_param_infos[at]
                is_here = flat.grad is not None and shard.in_shard
                gradient = flat.grad.narrow(0, shard.offset_in_shard, shard.numel_in_shard) if is_here else None
            if gradient is not None and gradient.numel():
                yield _Piece(gradient, group, cut)
    for parameter, cut in _loose(model):
        if parameter.grad is not None:
            yield _Piece(parameter.grad, None, cut)


def _loose(model: nn.Module) -> Iterator[tuple[nn.Parameter, Cut | None]]:
    """Yield each parameter that no FSDP unit has flattened, once."""
    seen: set[int] = set()
    for handle, _ in _units(model):
        seen.update(map(id, [handle.flat_param, *(handle.flat_param._params or [])]))
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter, cut_of(module, name)


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the gradients to scale."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            yield parameter.grad
