"""`torch.nn.utils.clip_grad_norm_` and `clip_grad_value_` for parameters of a DistributedModel.

Where: `DistributedModel` installs them. Scripts and transformers' Trainer call torch's own functions, which see only
this rank's gradients: each rank of a pipeline or tensor group would scale its part by a different norm, shards would be
ignored, and with fp16 the norm would include the loss scale. Here the norm is the whole model's, and gradients are
averaged over replicas first. Torch's own functions run for other parameters, and where they would clip correctly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from clary.train.parallel import runtime
from clary.train.parallel.errors import ParallelError
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.mistakes.taken_names import replace_everywhere

if TYPE_CHECKING:
    from clary.train.parallel.runtime import Runtime

_BY_NORM, _BY_VALUE = clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_


@functools.wraps(_BY_NORM)
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Clip as torch does, by the norm over all ranks; for parameters of a DistributedModel all ranks call it.

    Args: as torch's.
    Returns: the norm before clipping, a scalar.
    Raises: ParallelError if the norm type is not 2, if there is no DistributedOptimizer, or if only some of the shards
        are given, since shards can only be clipped together; RuntimeError if the norm is not finite and
        `error_if_nonfinite` is set.
    """
    given = _listed(parameters)
    now = _concerned(given)
    if now is None:
        return _BY_NORM(given, max_norm, norm_type, error_if_nonfinite, foreach)
    if float(norm_type) != 2.0:
        raise ParallelError(
            f"clip_grad_norm_: norm_type is {norm_type}, but gradients lie on several ranks or are "
            "scaled, where only norm_type 2 is supported"
        )
    optimizer = _optimizer_of(now, "clip_grad_norm_")
    norm = optimizer.reduce_gradients().clip(float(max_norm), optimizer.loss_scale, among={id(one) for one in given})
    if norm < 0:  # a gradient is not finite: the optimizer will skip the step
        norm = math.inf
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm}, and error_if_nonfinite is set")
    return torch.tensor(norm, device=now.device)


@functools.wraps(_BY_VALUE)
def clip_grad_value_(
    parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Clip averaged gradients as torch does; for parameters of a DistributedModel all ranks call it.

    Args: as torch's.
    Raises: ParallelError if this rank's gradients are scaled or are shards.
    """
    given = _listed(parameters)
    now = _concerned(given)
    if now is not None:
        keys = now.configuration
        if keys.fp16 or keys.shard_optimizer_state or keys.sharded_data_parallel_degree > 1:
            raise ParallelError(
                "clip_grad_value_ does not work with fp16, shard_optimizer_state or sharded data "
                "parallelism, where the gradients of parameters are scaled or missing: clip by the norm with "
                "optimizer.clip_master_grads(max_norm)"
            )
        _optimizer_of(now, "clip_grad_value_").reduce_gradients()
    _BY_VALUE(given, clip_value, foreach)


def install() -> None:
    """Replace torch's functions, also in modules that have imported them by name; a second call does nothing."""
    replace_everywhere(_BY_NORM, clip_grad_norm_)
    replace_everywhere(_BY_VALUE, clip_grad_value_)


def _listed(parameters: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _concerned(given: list[torch.Tensor]) -> Runtime | None:
    """Return the runtime if this rank's gradients of the parameters are incomplete; None if torch clips correctly."""
    if not runtime.is_initialized() or (now := runtime.current()).model is None:
        return None
    keys, optimizer = now.configuration, now.optimizer
    is_plain = not (keys.fp16 or keys.bf16 or keys.shard_optimizer_state or keys.sharded_data_parallel_degree > 1)
    if is_plain and now.mesh.degree(Along.MP) == 1 and not now.model.has_unreduced_gradients:
        return None
    own = {id(one) for one in now.model.parameters()}
    if optimizer is not None:  # an optimizer may step copies of parameters
        own.update(id(one) for group in optimizer.param_groups for one in group["params"])
    return now if any(id(one) in own for one in given) else None


def _optimizer_of(now: Runtime, name: str) -> Any:
    if now.optimizer is None:
        raise ParallelError(
            f"{name}: there is no DistributedOptimizer, which knows what lies on which rank: make it first"
        )
    return now.optimizer
