"""Steps of a torch optimizer on shards: reduction, clipping by the norm of all gradients, update.

[Note: elements] The optimizer gets this rank's flat part of every parameter. Its update must be elementwise, as with
SGD, Adam and AdamW; known optimizers that use whole matrices or norms of parameters are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel.sharded.model import ShardedModel

NOT_BY_ELEMENT = (
    "Adafactor",
    "LBFGS",
    "Muon",
    "SparseAdam",
    "LAMB",
    "Lamb",
    "FusedLAMB",
    "LARS",
    "Shampoo",
    "NovoGrad",
    "FusedNovoGrad",
)
_TINY = 1e-6  # added to the norm, as in torch.nn.utils.clip_grad_norm_


class ShardedOptimizer:
    """An optimizer whose parameters are replaced by their shards.

    Args:
        optimizer: optimizer of the model's parameters, without state yet; its groups keep their options and order.
        norm_group: ranks that hold other parts of the model (tp), over which the squared norm is summed too.
        norm_weight: function from a parameter's name to the weight of its squared gradient norm, since several ranks of
            `norm_group` may hold a parameter.

    Raises: ValueError if the optimizer has state, has parameters that the model lacks, or is not elementwise.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: ShardedModel,
        *,
        norm_group: dist.ProcessGroup | None = None,
        norm_weight: Callable[[str], float] | None = None,
    ) -> None:
        kind = type(optimizer).__name__
        if kind in NOT_BY_ELEMENT:
            raise ValueError(
                f"{kind} does not update each element independently, so it cannot step on shards: use an "
                "optimizer that does, such as AdamW, or sharded_data_parallel_degree 1 with "
                "shard_optimizer_state"
            )
        if optimizer.state:
            raise ValueError(f"{kind} has state already: shard it before its first step, then load the state")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not model.owns(parameter):
                    raise ValueError(
                        f"{kind} has a parameter of shape {tuple(parameter.shape)} that is not in the sharded model: "
                        "create the optimizer from the model's parameters"
                    )
        self.optimizer = optimizer
        self.model = model
        self.parameters = [list(group["params"]) for group in optimizer.param_groups]  # the model's, by group
        for group in optimizer.param_groups:
            group["params"] = [model.slice_of(parameter) for parameter in group["params"]]
        self.gradient_norm: float | None = None  # norm of the last step, before clipping
        self.has_overflowed = False  # whether the last step overflowed
        self._norm_group, self._norm_weight = norm_group, norm_weight
        self._is_measured = False  # whether `gradient_norm` is already computed for the next step
        self._limits = [model.settings.gradient_clipping]  # largest norms in the next step; 0 does not clip

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the optimizer; their parameters are shards."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    @property
    def state(self) -> dict[Any, Any]:
        """State of the optimizer, by shard."""
        state: dict[Any, Any] = self.optimizer.state
        return state

    @torch.no_grad()
    def step(self, *, loss_scale: float = 1.0) -> bool:
        """End the accumulation and step. All replicas call it.

        Args:
            loss_scale: factor of the losses. If it is not 1, or if the compute dtype is float16, a step with gradients
                that are not finite is skipped.

        Returns: whether the optimizer stepped; if not, gradients are kept until `zero_grad`.
        Raises: RuntimeError if a collective failed.
        """
        norm, limits = self._measure(loss_scale), self._limits
        self._expect_more()
        is_half = self.model.settings.compute_dtype is torch.float16
        self.has_overflowed = (is_half or loss_scale != 1.0) and not math.isfinite(norm)
        if self.has_overflowed:
            return False
        shrink = min([1.0, *(limit / (norm + _TINY) for limit in limits if limit > 0)])
        if shrink / loss_scale != 1.0:
            self.model.scale_gradients(shrink / loss_scale)
        self.optimizer.step()
        self.model.refresh()
        return True

    @torch.no_grad()
    def clip(self, max_norm: float, *, loss_scale: float = 1.0) -> float:
        """End the accumulation, and make the next step clip to `max_norm` as well. All replicas call it.

        Returns: the norm before clipping, over the whole model; -1 if it is not finite.
        Raises: RuntimeError if a collective failed.
        """
        norm = self._measure(loss_scale)
        self._limits.append(max_norm)
        return norm if math.isfinite(norm) else -1.0

    def _measure(self, loss_scale: float) -> float:
        """End the accumulation, once per step, and return the norm of all gradients."""
        if not self._is_measured or self.gradient_norm is None:
            self.model.end_accumulation(self._norm_weight)
            square = self.model.gradient_square
            if self._norm_group is not None:
                device = self.model.flats[0].master_S.device
                total = torch.tensor([square], dtype=torch.float64, device=device)
                dist.all_reduce(total, group=self._norm_group)
                square = float(total)
            self.gradient_norm = math.sqrt(square) / loss_scale
            self._is_measured = True
        return self.gradient_norm

    def _expect_more(self) -> None:
        """Start another accumulation."""
        self._is_measured, self._limits = False, [self.model.settings.gradient_clipping]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients: they become None for either value of `set_to_none`."""
        self._expect_more()
        self.model.clear_gradients()
