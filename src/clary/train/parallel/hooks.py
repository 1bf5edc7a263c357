"""Functions to be called at the next event, once, in the order in which they came, unless they are taken back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any


class Handle:
    """Takes one hook back."""

    def __init__(self, hooks: dict[int, Callable[..., Any]], key: int) -> None:
        self._hooks = hooks
        self._key = key

    def remove(self) -> None:
        """Call it no more."""
        self._hooks.pop(self._key, None)


class Hooks:
    """The hooks of one event."""

    def __init__(self) -> None:
        self._hooks: dict[int, Callable[..., Any]] = {}
        self._keys = itertools.count()

    def add(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook` from now on."""
        key = next(self._keys)
        self._hooks[key] = hook
        return Handle(self._hooks, key)

    def call_once(self, *args: Any) -> None:
        """Call all, and forget them."""
        hooks = list(self._hooks.values())
        self._hooks.clear()
        for hook in hooks:
            hook(*args)
