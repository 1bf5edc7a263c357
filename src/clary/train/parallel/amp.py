"""Scaling of losses under autocast, with gradients on many ranks.

Where: scripts make a `GradScaler` in place of torch's: they call `scale` inside the step, its other methods outside.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel import runtime
from clary.train.parallel.optimizer import DistributedOptimizer


class GradScaler(torch.amp.GradScaler):
    """torch's scaler; all ranks skip a step if any rank finds a gradient that is not finite.

    Args: as torch's, without the device, which is the rank's device.
    """

    agrees_over_ranks = True  # see `mistakes.scaling`

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(runtime.current().device.type, *args, **kwargs)

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of this rank's parameters by the scale. All ranks call it.

        Raises: unless the scaler is disabled, TypeError if it is no DistributedOptimizer; RuntimeError within `join`,
            and with fp16, bf16 or sharded data parallelism.
        """
        self._begin()
        self._prepare(optimizer)
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Step unless a gradient anywhere is not finite; a step that is skipped counts. All ranks call it.

        Raises: as `unscale_`.
        """
        self._begin()
        self._prepare(optimizer)
        if not self._enabled:
            return super().step(optimizer, *args, **kwargs)
        model = runtime.current().model
        num_steps = model.num_steps
        result = super().step(optimizer, *args, **kwargs)
        if model.num_steps == num_steps:  # on all ranks: else a rank without gradients would not meet the others again
            model.count_step()
        return result

    def update(self, new_scale: Any = None) -> None:
        """Adapt the scale, equally on all ranks."""
        self._begin()
        super().update(new_scale)

    def _begin(self) -> None:
        """Create the scale tensor if `scale` was never called: only the first rank of a pipeline computes losses."""
        if self._enabled and self._scale is None:
            self._lazy_init_scale_growth_tracker(runtime.current().device)

    def _unscale_grads_(self, *args: Any, **kwargs: Any) -> dict[torch.device, torch.Tensor]:
        found: dict[torch.device, torch.Tensor] = super()._unscale_grads_(*args, **kwargs)
        device = runtime.current().device
        worst = found[device] if device in found else torch.zeros(1, device=device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return {**found, device: worst}

    def _prepare(self, optimizer: Any) -> None:
        """Have gradients averaged before they are checked."""
        if not self._enabled:
            return
        if not isinstance(optimizer, DistributedOptimizer):
            raise TypeError(f"GradScaler: got {type(optimizer).__name__}; expected a DistributedOptimizer")
        now = runtime.current()
        if now.model.is_joined:
            raise RuntimeError(
                "GradScaler: with it all ranks agree on every step, so it cannot be used where replicas end "
                "at different steps (join)"
            )
        keys = now.configuration
        if keys.fp16 or keys.bf16 or keys.sharded_data_parallel_degree > 1:
            raise RuntimeError(
                "GradScaler: with fp16, bf16 or sharded data parallelism the optimizer scales by itself: "
                "leave GradScaler out"
            )
        optimizer.reduce_gradients()
