"""A script's placement of modules on pipeline ranks: marks on modules, set while or after they are made.

Where: `smp.partition` and `smp.set_partition` set marks; `DistributedModel` reads them if automatic partition is off.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

_MARK = "_clary_part"  # attribute of a module


def mark(module: torch.nn.Module, index: int) -> None:
    """Place a module, and its children that have no mark of their own, on a pipeline rank.

    Raises: ValueError if `index` is not a whole number of at least 0.
    """
    module.__dict__[_MARK] = _checked(index)


@contextlib.contextmanager
def marking(index: int) -> Iterator[None]:
    """Mark all modules that are made in the block; the innermost context wins.

    Raises: ValueError if `index` is not a whole number of at least 0.
    """
    original = torch.nn.Module.__init__
    torch.nn.Module.__init__ = _marked(original, _checked(index))
    try:
        yield
    finally:
        torch.nn.Module.__init__ = original


def marks_of(root: torch.nn.Module) -> dict[str, int]:
    """Return the pipeline rank of every marked module of a tree, by path; "" is the root."""
    return {name: module.__dict__[_MARK] for name, module in root.named_modules() if _MARK in module.__dict__}


def _checked(part: int) -> int:
    if isinstance(part, bool) or not isinstance(part, int) or part < 0:
        raise ValueError(f"a partition is a pipeline rank, 0 or more; got {part!r}")
    return part


def _marked(original: Any, part: int) -> Any:
    """Wrap a constructor so that it marks its module; the inner of two contexts marks last, so its mark stays."""

    @functools.wraps(original)
    def __init__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.__dict__[_MARK] = part

    return __init__


def copy_mark(module: torch.nn.Module, replacement: torch.nn.Module) -> None:
    """Copy a module's mark to its replacement."""
    if _MARK in module.__dict__:
        replacement.__dict__[_MARK] = module.__dict__[_MARK]
