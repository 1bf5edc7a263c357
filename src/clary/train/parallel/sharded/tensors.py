"""The tensors in nested arguments and results of modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in lists, tuples, sets, mappings, dataclasses, and in the attributes of other objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from tensors_in(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        for one in vars(value).values():  # one level alone, since objects may refer to each other
            yield from (item for item in (one if isinstance(one, list | tuple) else [one]) if _is_tensor(item))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
