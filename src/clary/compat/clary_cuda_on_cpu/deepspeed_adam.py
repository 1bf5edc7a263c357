"""Replaces DeepSpeed's own Adam, which would need CUDA's compiler, by torch's Adam.

Source: the documentation of DeepSpeed's optimizers. See [Note: libraries] of the package.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .refusing import refusal

_KEPT = ("lr", "betas", "eps", "weight_decay", "amsgrad")


def mend_adam(name: str) -> Callable[[Any], None]:
    """Return a function that replaces the class of this name in a module of DeepSpeed."""
    return functools.partial(_replace, name)


def _replace(name: str, module: Any) -> None:
    import torch

    original = getattr(module, name)
    signature = inspect.signature(original.__init__)

    class Adam(torch.optim.AdamW):
        __doc__ = original.__doc__

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            told = bound.arguments
            if not told["bias_correction"]:
                raise refusal(f"{name} of DeepSpeed without bias_correction")
            self.is_decoupled = bool(told.get("adam_w_mode", told.get("adamw_mode", True)))
            weights = told["params"] if "params" in told else told["model_params"]
            super().__init__(weights, **{key: told[key] for key in _KEPT})

        def step(self, *args: Any, **kwargs: Any) -> Any:
            if self.is_decoupled:
                return super().step(*args, **kwargs)
            decays = [group["weight_decay"] for group in self.param_groups]
            try:
                for group in self.param_groups:
                    _add_decay(group)
                    group["weight_decay"] = 0.0
                return super().step(*args, **kwargs)
            finally:
                for group, decay in zip(self.param_groups, decays):  # noqa: B905 - Pythons before 3.10 read this
                    group["weight_decay"] = decay

    Adam.__name__, Adam.__qualname__, Adam.__module__ = name, name, original.__module__
    setattr(module, name, Adam)


def _add_decay(group: Any) -> None:
    """Add the weight decay to the gradients of a parameter group, as in Adam, unlike AdamW."""
    for weight in group["params"]:
        if weight.grad is not None:
            weight.grad.add_(weight.detach(), alpha=group["weight_decay"])
