"""Base class of this package's optimizers: closures, clearing of gradients, state in at least 32 bits.

Where: base of `FusedLAMB` and `FusedNovoGrad`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from clary.train.parallel.optimizers.norms import Norms, widened


class NormedOptimizer(torch.optim.Optimizer):
    """An optimizer that uses norms of whole parameters, of which this rank may hold slices.

    Args:
        set_grad_none: whether `zero_grad` sets gradients to None.
    """

    def __init__(self, params: Any, defaults: dict[str, Any], *, set_grad_none: bool) -> None:
        super().__init__(params, defaults)
        self.norms = Norms()
        self._drops = set_grad_none

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, in at least 32 bits: torch would round it to the dtypes of 16-bit parameters."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [one for group in self.param_groups for one in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            loaded = self.state.get(parameter, {})
            for name, saved in state_dict["state"].get(number, {}).items():
                rounded = loaded.get(name)
                if not isinstance(saved, torch.Tensor) or not isinstance(rounded, torch.Tensor):
                    continue
                if rounded.is_floating_point() and widened([rounded])[0] is not rounded:
                    wide = widened([saved])[0].dtype
                    loaded[name] = saved.to(device=rounded.device, dtype=wide, copy=True)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear gradients; `set_to_none` overrides `set_grad_none`."""
        super().zero_grad(set_to_none=self._drops if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; all ranks of a model call it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        trained = [[one for one in group["params"] if one.grad is not None] for group in self.param_groups]
        self._step_groups(trained)
        return loss

    @abstractmethod
    def _step_groups(self, trained: list[list[torch.nn.Parameter]]) -> None:
        """Update the given parameters of each group, all of which have gradients."""

    def _state_of(self, parameter: torch.nn.Parameter, name: str) -> torch.Tensor:
        """Return a state tensor of a parameter, in at least 32 bits; the first call creates it with zeros."""
        state = self.state[parameter]
        if name not in state:
            (wide,) = widened([parameter])
            state[name] = torch.zeros_like(wide, memory_format=torch.preserve_format)
        found: torch.Tensor = state[name]
        return found
