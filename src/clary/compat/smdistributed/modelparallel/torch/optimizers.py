"""`smp.optimizers`: torch's and `clary.train.parallel.optimizers`' classes under fused optimizers' names."""

from __future__ import annotations

from typing import Any

import torch

from clary.train.parallel.optimizers.lamb import FusedLAMB
from clary.train.parallel.optimizers.novograd import FusedNovoGrad

FusedLamb = FusedLAMB  # as the documentation spells it

__all__ = ["FusedAdam", "FusedLAMB", "FusedLamb", "FusedNovoGrad"]


class FusedAdam(torch.optim.AdamW):
    """AdamW, or Adam with `adam_w_mode=False`, with the arguments of apex's FusedAdam."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if not bias_correction or amsgrad:
            raise ValueError(
                "FusedAdam: bias_correction=False and amsgrad=True are not supported; use torch.optim.Adam"
            )
        if not adam_w_mode and weight_decay:
            raise ValueError("FusedAdam: adam_w_mode=False with weight_decay is not supported; use torch.optim.Adam")
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
