"""LAMB: Adam with the step of every parameter scaled to the norm of the parameter times the learning rate.

    g = gradient / max(1, norm of all gradients / max_grad_norm)
    m, v = moving means of g and of g * g, without bias if `bias_correction`
    u = m / (sqrt(v) + eps) + weight_decay * p           (`adam_w_mode`; else weight_decay * p is added to g)
    p -= lr * |p| / |u| * u                              (|p| / |u| is 1 if either is 0, and also without weight decay
                                                         unless `use_nvlamb` is set)

Source: arXiv 1904.00962, algorithm 2; apex's documentation of `FusedLAMB` for the arguments and their effects.
"""

from __future__ import annotations

from typing import Any

import torch

from clary.train.parallel.optimizers.norms import squares_of, widened
from clary.train.parallel.optimizers.steps import NormedOptimizer


class FusedLAMB(NormedOptimizer):
    """LAMB with apex's arguments.

    Args:
        bias_correction: divide moving means by the sum of their weights.
        weight_decay: a group with 0 takes Adam's steps, unless `use_nvlamb` is set.
        adam_w_mode: add the decay to the update instead of the gradient.
        grad_averaging: weight new gradients by 1 - beta1 in the moving mean; if False, by 1.
        set_grad_none: whether `zero_grad` sets gradients to None.
        max_grad_norm: largest norm of the whole model's gradients, which are scaled down to it; 0 does not scale.
        use_nvlamb: scale the step of every parameter, including parameters without weight decay.

    Raises: ValueError for amsgrad, which LAMB lacks, and for numbers out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        if amsgrad:
            raise ValueError("FusedLAMB: amsgrad is not a part of LAMB; leave it out")
        if lr < 0 or eps < 0 or max_grad_norm < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"FusedLAMB: lr is {lr}, eps {eps}, max_grad_norm {max_grad_norm}, betas {betas}; expected 0 or more, "
                "and betas below 1"
            )
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults, set_grad_none=set_grad_none)
        self._decays_weights = adam_w_mode
        self._scales_all = use_nvlamb

    def _step_groups(self, trained: list[list[torch.nn.Parameter]]) -> None:
        norm = self._gradient_norm([one for group in trained for one in group])
        for group, parameters in zip(self.param_groups, trained, strict=True):
            group["step"] = group.get("step", 0) + 1
            limit = group["max_grad_norm"]
            shrink = norm / limit if limit and norm > limit else 1.0
            self._step_group(group, parameters, shrink)

    def _gradient_norm(self, parameters: list[torch.nn.Parameter]) -> float:
        device = self.param_groups[0]["params"][0].device if self.param_groups[0]["params"] else torch.device("cpu")
        squares = squares_of([one.grad for one in parameters if one.grad is not None], device)
        return float(self.norms.of_model(parameters, squares).sqrt())

    def _step_group(self, group: dict[str, Any], parameters: list[torch.nn.Parameter], shrink: float) -> None:
        if not parameters:
            return
        beta1, beta2 = group["betas"]
        values = widened(parameters)
        grads = torch._foreach_div(widened([one.grad for one in parameters if one.grad is not None]), shrink)
        if group["weight_decay"] and not self._decays_weights:
            torch._foreach_add_(grads, values, alpha=group["weight_decay"])
        means = [self._state_of(one, "exp_avg") for one in parameters]
        squares = [self._state_of(one, "exp_avg_sq") for one in parameters]
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, grads, alpha=1 - beta1 if group["grad_averaging"] else 1.0)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        first, second = 1.0, 1.0
        if group["bias_correction"]:
            first, second = 1 - beta1 ** group["step"], 1 - beta2 ** group["step"]
        roots = torch._foreach_sqrt(torch._foreach_div(squares, second))
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(torch._foreach_div(means, first), roots)
        if group["weight_decay"] and self._decays_weights:
            torch._foreach_add_(updates, values, alpha=group["weight_decay"])
        if self._scales_all or group["weight_decay"]:
            torch._foreach_mul_(updates, list(self._ratios(parameters, values, updates).unbind()))
        torch._foreach_add_(values, updates, alpha=-group["lr"])
        for parameter, value in zip(parameters, values, strict=True):
            if value is not parameter:
                parameter.copy_(value)

    def _ratios(
        self, parameters: list[torch.nn.Parameter], values: list[torch.Tensor], updates: list[torch.Tensor]
    ) -> torch.Tensor:
        """Return the norm of every parameter divided by the norm of its update; 1 if either is 0."""
        device = parameters[0].device
        both = torch.cat([squares_of(values, device), squares_of(updates, device)])
        both = self.norms.of_parameters([*parameters, *parameters], both).sqrt()
        norms, of_updates = both[: len(values)], both[len(values) :]
        is_scaled = (norms > 0) & (of_updates > 0)
        return torch.where(is_scaled, norms / torch.where(is_scaled, of_updates, 1.0), 1.0)
