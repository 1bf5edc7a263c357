"""Base of the optimizers here: closures, dropped gradients, state in at least 32 bits.

Where: base of `FusedLAMB` and `FusedNovoGrad`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from clary.train.parallel.optimizers.norms import Norms, widened


class NormedOptimizer(torch.optim.Optimizer):
    """An optimizer that looks at norms of whole parameters, of which this rank may hold a part.

    Args:
        set_grad_none: `zero_grad` drops gradients.
    """

    def __init__(self, params: Any, defaults: dict[str, Any], *, set_grad_none: bool) -> None:
        super().__init__(params, defaults)
        self.norms = Norms()
        self._drops = set_grad_none

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Forget gradients; as `set_grad_none` says unless told."""
        super().zero_grad(set_to_none=self._drops if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; with other ranks of a model, all of them call it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        trained = [[one for one in group["params"] if one.grad is not None] for group in self.param_groups]
        self._step_groups(trained)
        return loss

    @abstractmethod
    def _step_groups(self, trained: list[list[torch.nn.Parameter]]) -> None:
        """Update the parameters that have gradients, given by group."""

    def _state_of(self, parameter: torch.nn.Parameter, name: str) -> torch.Tensor:
        """Return a state tensor of a parameter, in at least 32 bits; zeros at first."""
        state = self.state[parameter]
        if name not in state:
            (wide,) = widened([parameter])
            state[name] = torch.zeros_like(wide, memory_format=torch.preserve_format)
        found: torch.Tensor = state[name]
        return found
