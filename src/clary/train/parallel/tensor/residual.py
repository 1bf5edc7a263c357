"""The residual behind both blocks of a layer, and the layer normalisation after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clary.train.parallel.tensor.layernorm import HiddenLayerNorm
from clary.train.parallel.tensor.settings import LayerSettings


def add_residual(
    output: torch.Tensor, residual: torch.Tensor, layernorm: HiddenLayerNorm | None, settings: LayerSettings
) -> torch.Tensor:
    """Return a block's output with its input added, and normalised if there is a `layernorm`.

    With `fp32_residual_addition` the sum stays in float32 until a layer normalises it or the module returns it.

    Args:
        output: of the block, in the inside layout: [M, S, H/T] or [M, S, H], see `layout`.
        residual: input of the block, of the same shape; added unless `settings.adds_residual` is off.
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
