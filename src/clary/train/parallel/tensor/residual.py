"""The residual after each block of a layer, and the subsequent layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clary.train.parallel.tensor.layernorm import HiddenLayerNorm
from clary.train.parallel.tensor.settings import LayerSettings


def add_residual(
    output: torch.Tensor, residual: torch.Tensor, layernorm: HiddenLayerNorm | None, settings: LayerSettings
) -> torch.Tensor:
    """Add a block's input to its output, and normalise the sum if there is a `layernorm`.

    With `fp32_residual_addition` the sum stays in float32 until a layer normalises it or the module returns it.

    Args:
        output: output of the block in the inside layout: [M, S, H/T] or [M, S, H], see `layout`.
        residual: input of the block, of the same shape; added if `settings.adds_residual`.
        layernorm: None does not normalise the sum.
    """
    if settings.adds_residual:
        output = add((output, residual), settings)
    return output if layernorm is None else layernorm(output)


def add(parts: Sequence[torch.Tensor], settings: LayerSettings) -> torch.Tensor:
    """Return the sum of a residual and outputs of blocks, in float32 with `fp32_residual_addition`."""
    first, *others = (part.float() for part in parts) if settings.fp32_residual_addition else parts
    for other in others:
        first = first + other
    return first
