"""Norms of whole models and of whole parameters, for optimizers.

Where: optimizers that scale by norms call it; `Norms` sums the squares of this rank alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_FEW_BYTES = 4  # bytes; narrower dtypes are converted to float32


class Norms:
    """Norms for a rank that holds all parameters whole. Otherwise `steppers` uses `NormsOverRanks` instead."""

    def of_model(self, parameters: Sequence[torch.Tensor], squares: torch.Tensor) -> torch.Tensor:
        """Return the square of the norm over the whole model, a scalar.

        Args:
            parameters: this rank's parameters.
            squares: [parameters], squared norms of their gradients.
        """
        return squares.sum()

    def of_parameters(
        self, parameters: Sequence[torch.Tensor], found: torch.Tensor, *, are_largest: bool = False
    ) -> torch.Tensor:
        """Return the squared norms or maxima of whole parameters, from the values of this rank's slices.

        Args:
            parameters: this rank's parameters, whole or slices.
            found: [parameters], squared norms, or largest elements if `are_largest`.
            are_largest: whether values of slices are combined by their maximum instead of their sum.
        """
        return found


def squares_of(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the square of the norm of each tensor, in float32; `device` is used if there are no tensors."""
    if not tensors:
        return torch.zeros(0, device=device)
    return torch.stack([norm.float() for norm in torch._foreach_norm(list(tensors))]).square()


def widened(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Convert tensors to at least 32 bits; wide enough tensors are not copied."""
    return [tensor.float() if tensor.dtype.itemsize < _FEW_BYTES else tensor for tensor in tensors]
