"""The loss scale: the factor of losses in half precision, so that small gradients do not vanish.

Where: `DistributedOptimizer` with fp16.
Source: sagemaker-python-sdk's `smp.DistributedOptimizer`, for the names of the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass
class LossScale:
    """A loss scale and the rules of its changes.

    Args:
        value: the current scale.
        is_dynamic: whether the scale changes.
        scale_factor: factor by which the scale falls after steps with gradients that are not finite (bad steps), and
            rises after a run of good steps.
        scale_window: number of good steps in a run.
        min_scale: lower limit of the scale.
        delayed_shift: number of bad steps after which the scale falls; until the count is reset, each further bad step
            lowers the scale again.
        consecutive_hysteresis: whether a good step resets the count of bad steps.
    """

    value: float = 1.0
    is_dynamic: bool = False
    scale_factor: float = 2.0
    scale_window: int = 1000
    min_scale: float = 1.0
    delayed_shift: int = 1
    consecutive_hysteresis: bool = False
    num_good: int = 0  # good steps since the last bad step or rise
    patience: int = 1  # remaining bad steps until the scale falls

    @classmethod
    def make(cls, static: float | None, is_dynamic: bool, arguments: Mapping[str, Any]) -> LossScale:
        """Make a scale from the arguments of an optimizer.

        Args:
            static: the scale if it is not dynamic; None is 1.
            is_dynamic: whether the scale changes.
            arguments: options of a dynamic scale by name, and `init_scale`, by default 2^32.

        Raises: ValueError for an unknown argument.
        """
        known = {one.name for one in fields(cls)} - {"value", "is_dynamic", "num_good", "patience"} | {"init_scale"}
        if unknown := set(arguments) - known:
            raise ValueError(
                f"dynamic_loss_args has {', '.join(sorted(unknown))}; expected only the keys {', '.join(sorted(known))}"
            )
        if not is_dynamic:
            return cls(value=1.0 if static is None else static)
        rest = {key: value for key, value in arguments.items() if key != "init_scale"}
        scale = cls(value=float(arguments.get("init_scale", 2.0**32)), is_dynamic=True, **rest)
        scale.patience = scale.delayed_shift
        return scale

    def update(self, has_overflown: bool) -> None:
        """Update the scale after a step."""
        if not self.is_dynamic:
            return
        if has_overflown:
            self.num_good = 0
            self.patience -= 1
            if self.patience <= 0:
                self.value = max(self.value / self.scale_factor, self.min_scale)
                self.patience = 1
            return
        if self.consecutive_hysteresis:
            self.patience = self.delayed_shift
        self.num_good += 1
        if self.num_good == self.scale_window:
            self.num_good, self.patience = 0, self.delayed_shift
            self.value *= self.scale_factor

    def state(self) -> dict[str, Any]:
        """Return the state for `load`."""
        return asdict(self)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the scale from the result of `state`."""
        for key, value in state.items():
            setattr(self, key, value)
