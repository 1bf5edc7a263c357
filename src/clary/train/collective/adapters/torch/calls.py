"""Reads torch's two spellings of a call, the long one and the short one.

The long spelling has lists of tensors and an options object, as torch.distributed and C++ write it. The short spelling
has single tensors with a root, an operation and a timeout, as programs that hold a ProcessGroup may write it.

Where: `collectives` brings every call to the long spelling. Options of torch before 2.7 do not say whether the caller
waits; every call then counts as asynchronous.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch.distributed import AllreduceOptions

Options = TypeVar("Options")


def _always(_: Any) -> bool:
    return True


is_asynchronous: Callable[[Any], bool] = (
    operator.attrgetter("asyncOp") if hasattr(AllreduceOptions, "asyncOp") else _always
)


def options_of(
    kind: type[Options],
    given: Any,
    timeout: timedelta | None = None,
    *,
    root: int | None = None,
    op: Any = None,
) -> Options:
    """Return `given` if it is an options object, else a new object of `kind` with the named values.

    Args:
        given: options; any other value in the short spelling.
    """
    if isinstance(given, kind):
        return given
    options: Any = kind()
    if root is not None:
        options.rootRank = root
    if op is not None:
        options.reduceOp = op
    if timeout is not None:
        options.timeout = timeout
    return options  # type: ignore[no-any-return]


def as_list(tensors: Any) -> list[Any]:
    """Return a list of tensors, given a list or a single tensor."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def as_nested(tensors: list[Any]) -> list[list[Any]]:
    """Return a list of lists, given one or given a plain list of tensors."""
    return [tensors] if tensors and isinstance(tensors[0], torch.Tensor) else tensors


def limit_s_of(options: Any, default_s: float) -> float:
    """Return the time limit of options in seconds, or `default_s` if torch's negative value marks it as unset."""
    timeout: timedelta = options.timeout
    return default_s if timeout.days < 0 else timeout.total_seconds()
