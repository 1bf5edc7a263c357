"""torch's own GradScaler over a DistributedOptimizer, refused where ranks would not agree on its findings.

Where: `DistributedModel` installs it. torch's looks at this rank's gradients alone: where parts or slices of a model
lie on several ranks one of them may skip a step that the others make, and shards and copies in float32 are no gradients
of parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from clary.train.parallel import runtime
from clary.train.parallel.errors import ParallelError
from clary.train.parallel.layout.mesh import Along

AGREES = "agrees_over_ranks"  # attribute of the scaler of ours, which may; and of methods that look for it
_METHODS = ("unscale_", "step")


def install() -> None:
    """Have torch's scaler refuse; harmless when repeated."""
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
