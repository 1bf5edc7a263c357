"""NovoGrad: momentum of gradients, where each parameter's gradient is divided by a moving mean of its norm.

    n = moving norm of the parameter's gradient, a number
    m = beta1 * m + (1 - beta1) * g;  p -= lr * (m / (n + eps) + weight_decay * p)
    with `reg_inside_moment`:  m = beta1 * m + (1 - beta1) * (g / (n + eps) + weight_decay * p);  p -= lr * m

With `bias_correction`, step t uses m / (1 - beta1^t) and n / sqrt(1 - beta2^t) in place of m and n. For norm_type 2 the
moving norm is the root of the moving mean of squared norms; for 0 it is the moving mean of largest elements.
Source: arXiv 1905.11286; apex's documentation of `FusedNovoGrad` for the arguments and their effects.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from clary.train.parallel.optimizers.norms import squares_of, widened
from clary.train.parallel.optimizers.steps import NormedOptimizer

_LARGEST = 0  # apex's norm_type for the largest element
_EUCLIDEAN = 2


class FusedNovoGrad(NormedOptimizer):
    """NovoGrad with apex's arguments.

    Args:
        bias_correction: divide m and n by the terms above.
        reg_inside_moment: add weight decay before the momentum instead of after it.
        grad_averaging: weight new gradients by 1 - beta1 in the momentum; if False, by 1.
        norm_type: 2, or 0 for the largest element.
        init_zero: the moving norm begins at 0 instead of the first gradient's norm.
        set_grad_none: whether `zero_grad` sets gradients to None.

    Raises: ValueError for amsgrad, which NovoGrad lacks, for another norm, and for numbers out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise ValueError("FusedNovoGrad: amsgrad is not a part of NovoGrad; leave it out")
        if norm_type not in (_LARGEST, _EUCLIDEAN):
            raise ValueError(f"FusedNovoGrad: norm_type is {norm_type!r}; expected 2, or 0 for the largest element")
        if lr < 0 or eps < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"FusedNovoGrad: lr is {lr}, eps {eps}, betas {betas}; expected 0 or more, and betas below 1"
            )
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "norm_type": norm_type,
            "init_zero": init_zero,
        }
        super().__init__(params, defaults, set_grad_none=set_grad_none)
        self._decays_inside = reg_inside_moment

    def _step_groups(self, trained: list[list[torch.nn.Parameter]]) -> None:
        for group, parameters in zip(self.param_groups, trained, strict=True):
            group["step"] = group.get("step", 0) + 1
            self._step_group(group, parameters)

    def _step_group(self, group: dict[str, Any], parameters: list[torch.nn.Parameter]) -> None:
        if not parameters:
            return
        beta1, beta2 = group["betas"]
        values = widened(parameters)
        grads = widened([one.grad for one in parameters if one.grad is not None])
        first, second = 1.0, 1.0
        if group["bias_correction"]:
            first, second = 1 - beta1 ** group["step"], math.sqrt(1 - beta2 ** group["step"])
        norms = self._moving_norms(group, parameters, grads)
        denominators = list((norms / second + group["eps"]).unbind())
        means = [self._state_of(one, "exp_avg") for one in parameters]
        weight = 1 - beta1 if group["grad_averaging"] else 1.0
        torch._foreach_mul_(means, beta1)
        if self._decays_inside:
            grads = torch._foreach_div(grads, denominators)
            torch._foreach_add_(grads, values, alpha=group["weight_decay"])
            torch._foreach_add_(means, grads, alpha=weight)
            updates = torch._foreach_div(means, first)
        else:
            torch._foreach_add_(means, grads, alpha=weight)
            updates = torch._foreach_div(torch._foreach_div(means, first), denominators)
            torch._foreach_add_(updates, values, alpha=group["weight_decay"])
        torch._foreach_add_(values, updates, alpha=-group["lr"])
        for parameter, value in zip(parameters, values, strict=True):
            if value is not parameter:
                parameter.copy_(value)

    def _moving_norms(
        self, group: dict[str, Any], parameters: list[torch.nn.Parameter], grads: list[torch.Tensor]
    ) -> torch.Tensor:
        """Update the moving norms; return them, one per parameter."""
        beta2 = group["betas"][1]
        if group["norm_type"] == _EUCLIDEAN:
            now = self.norms.of_parameters(parameters, squares_of(grads, parameters[0].device)).sqrt()
        else:
            largest = torch.stack([one.float() for one in torch._foreach_norm(grads, math.inf)])
            now = self.norms.of_parameters(parameters, largest, are_largest=True)
        found = []
        for parameter, norm in zip(parameters, now.unbind(), strict=True):
            state = self.state[parameter]
            if "norm" not in state:
                state["norm"] = torch.zeros_like(norm) if group["init_zero"] else norm.clone()
            found.append(state["norm"])
        before = torch.stack(found)
        if group["norm_type"] == _EUCLIDEAN:
            after = (beta2 * before.square() + (1 - beta2) * now.square()).sqrt()
        else:
            after = beta2 * before + (1 - beta2) * now
        for kept, norm in zip(found, after.unbind(), strict=True):
            kept.copy_(norm)
        return after
