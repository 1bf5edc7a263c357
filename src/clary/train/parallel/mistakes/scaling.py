"""Refusal of torch's GradScaler for a DistributedOptimizer if ranks could disagree on overflow.

Where: `DistributedModel` installs it. torch's scaler checks this rank's gradients alone: with parts or slices of a
model on several ranks, one rank may skip a step that the others take; and with shards or float32 copies, it does not
see their gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from clary.train.parallel import runtime
from clary.train.parallel.errors import ParallelError
from clary.train.parallel.layout.mesh import Along

AGREES = "agrees_over_ranks"  # attribute that marks our scaler as allowed, and torch's methods as checked
_METHODS = ("unscale_", "step")


def install() -> None:
    """Make torch's scaler refuse a DistributedOptimizer if ranks could disagree; a second call does nothing."""
    for name in _METHODS:
        method = getattr(torch.amp.GradScaler, name)
        if not hasattr(method, AGREES):
            setattr(torch.amp.GradScaler, name, _checked(method))


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_enabled() and not hasattr(self, AGREES):
            _refuse(optimizer)
        return method(self, optimizer, *args, **kwargs)

    setattr(run, AGREES, False)
    return run


def _refuse(optimizer: Any) -> None:
    if not runtime.is_initialized() or runtime.current().optimizer is not optimizer:
        return
    now = runtime.current()
    keys = now.configuration
    scales = keys.fp16 or keys.bf16 or keys.sharded_data_parallel_degree > 1
    if scales or keys.shard_optimizer_state or now.mesh.degree(Along.MP) > 1 or now.model.has_unreduced_gradients:
        raise ParallelError(
            "torch's GradScaler looks at the gradients of this rank alone: "
            + (
                "leave it out, the optimizer scales by itself"
                if scales
                else "take smp.amp.GradScaler(), whose ranks skip a step together"
            )
        )
