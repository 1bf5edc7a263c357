"""Errors for functions and classes of CUDA that a CPU cannot replace; each error names its function or class.

See [Note: classes] of the package.
"""

from __future__ import annotations

import functools
from types import FrameType
from typing import Any

from .names import VARIABLE

_CUDA_MODULES = "torch.cuda"


def refusal(what: str) -> RuntimeError:
    """Return the error for a part of CUDA that the CPU does not have."""
    return RuntimeError(f"{VARIABLE}=1: {what} has no meaning on the CPU, so this part cannot be rehearsed")


def refused_function(name: str, original: Any) -> Any:
    """Return a function that refuses to be called.

    It keeps `__wrapped__` of a decorated function, which torch 2.14 reads when it imports its compiler.

    Args:
        original: torch's function; None if this version has none.
    """

    def refuse(*_: Any, **__: Any) -> None:
        raise refusal(name)

    return refuse if original is None else functools.wraps(original)(refuse)


def refused_class(name: str, original: type) -> type:
    """Return a replacement of a class; it works in annotations and type checks, but its constructor raises."""

    def refuse(cls: Any, *_: Any, **__: Any) -> None:
        raise refusal(name)

    members = {"__new__": refuse, "__module__": original.__module__, "__doc__": original.__doc__}
    return type(original.__name__, (original,), members)


def named_refusals(function: Any, name: str) -> Any:
    """Wrap a torch function so that it raises an error with its name if it needs a part missing in CPU builds."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except AttributeError as error:
            if "torch._C" not in str(error):
                raise
            raise refusal(name) from error

    return call


def asks_for_a_gpu(frame: FrameType) -> str | None:
    """Describe a caller of `torch.cuda._lazy_init`; None for a caller that needs no GPU.

    Args:
        frame: frame of the caller of `_lazy_init`, or of the caller of the C++ function that called it.
    """
    module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
    if module == _CUDA_MODULES or module.startswith(f"{_CUDA_MODULES}."):
        return f"{module}.{function}"
    if "_lazy_init" in frame.f_code.co_names:
        return None
    return f"a tensor on CUDA, asked for by {function} ({frame.f_code.co_filename}:{frame.f_lineno}),"
