"""Casting of inputs to a model of half precision, and of its outputs."""

from __future__ import annotations

from typing import Any

import torch

from clary.train.parallel.pipeline.messages import map_leaves


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Return nested values with every tensor of a floating-point dtype cast to `dtype`; the rest as it is."""

    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return map_leaves(value, cast)
