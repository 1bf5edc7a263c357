"""Removes the hook from a model during `torch.cuda.make_graphed_callables`, which refuses models with hooks.

Where: each `module_watch.ModuleWatch` uses it until it is closed.
Source: torch.cuda.make_graphed_callables: modules must have no hooks when they are passed, but may have hooks later.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

_NAME = "make_graphed_callables"
_MODULES = ("torch.cuda", "torch.cuda.graphs")  # modules through which programs call it
WithoutHook = Callable[[], AbstractContextManager[None]]

_asides: list[WithoutHook] = []
_originals: dict[str, Any] = {}  # module -> its original function


def step_aside(without_hook: WithoutHook) -> None:
    """Run `make_graphed_callables` within `without_hook` from now on; do nothing in a torch that lacks it."""
    _asides.append(without_hook)
    for name in _MODULES:
        original = getattr(sys.modules.get(name), _NAME, None)
        if original is not None and name not in _originals:
            _originals[name] = original
            setattr(sys.modules[name], _NAME, _within_asides(original))


def stay(without_hook: WithoutHook) -> None:
    """Undo `step_aside`; a second call does nothing. The call that undoes the last `step_aside` restores torch."""
    if without_hook in _asides:
        _asides.remove(without_hook)
    if not _asides:
        for name, original in _originals.items():
            if getattr(getattr(sys.modules[name], _NAME), "__wrapped__", None) is original:
                setattr(sys.modules[name], _NAME, original)
        _originals.clear()


def _within_asides(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_graphed_callables(*arguments: Any, **keywords: Any) -> Any:
        with ExitStack() as stack:
            for without_hook in tuple(_asides):
                stack.enter_context(without_hook())
            return original(*arguments, **keywords)

    return make_graphed_callables
