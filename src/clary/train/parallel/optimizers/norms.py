"""Norms of whole models and of whole parameters, for optimizers.

Where: optimizers that scale by norms call it; the base class adds up only this rank's squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_FEW_BYTES = 4  # narrower dtypes are converted to float32


class Norms:
    """Norms if this rank holds all parameters whole. Otherwise `steppers` replaces them with `NormsOverRanks`."""

    def of_model(self, parameters: Sequence[torch.Tensor], squares: torch.Tensor) -> torch.Tensor:
        """Return the square of the norm over the whole model, a scalar.

        Args:
            parameters: of this rank.
            squares: [parameters], of the norms of their gradients.
        """
        return squares.sum()

    def of_parameters(
        self, parameters: Sequence[torch.Tensor], found: torch.Tensor, *, are_largest: bool = False
    ) -> torch.Tensor:
        """Return the values of whole parameters, from the values found in this rank's slices.

        Args:
            parameters: of this rank, whole or slices.
            found: [parameters], squares of norms; largest elements if `are_largest`.
            are_largest: whether slices join to their maximum rather than their sum.
        """
        return found


def squares_of(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the square of the norm of each tensor, in float32; `device` is used if there are no tensors."""
    if not tensors:
        return torch.zeros(0, device=device)
    return torch.stack([norm.float() for norm in torch._foreach_norm(list(tensors))]).square()


def widened(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of at least 32 bits; wide enough ones are returned themselves, not copied."""
    return [tensor.float() if tensor.dtype.itemsize < _FEW_BYTES else tensor for tensor in tensors]
