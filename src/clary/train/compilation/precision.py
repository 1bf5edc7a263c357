"""Runs a model under autocast, and returns its results in float32, as the program expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_MAX_DEPTH = 8  # a container inside of more containers than this is returned unchanged
_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Autocast:
    """Autocast of one model: its device type and its number type."""

    device_type: str
    dtype: str

    def run(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call a model and return its results, with half precision converted to float32."""
        with torch.autocast(self.device_type, dtype=getattr(torch, self.dtype)):
            result = call(*arguments, **keywords)
        return in_float32(result)


def in_float32(result: Any, depth: int = 0) -> Any:
    """Return a model's result with half precision tensors converted to float32.

    Tensors in tuples, lists and mappings are included, also in subclasses whose constructor takes the content; any
    other value, and a container without such a tensor, is returned unchanged.

    Args:
        result: any value; tensors have any shape.
        depth: number of containers around it.
    """
    if isinstance(result, torch.Tensor):
        return result.float() if result.dtype in _HALVES else result
    if depth > _MAX_DEPTH:
        return result
    if isinstance(result, Mapping):
        values = {key: in_float32(value, depth + 1) for key, value in result.items()}
        is_same = all(values[key] is value for key, value in result.items())
        return result if is_same else _made(result, values)
    if isinstance(result, tuple | list):
        items = [in_float32(item, depth + 1) for item in result]
        is_same = all(new is old for new, old in zip(items, result, strict=True))
        return result if is_same else _made(result, items)
    return result


def _made(result: Any, content: Any) -> Any:
    """Return a container of a result's class; the result itself if the constructor does not take the content."""
    kind: Any = type(result)
    try:
        return kind(*content) if hasattr(kind, "_fields") else kind(content)
    except Exception:  # noqa: BLE001 - boundary: classes of users
        return result
