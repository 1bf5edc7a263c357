"""One-shot hooks: functions that the next event calls in the order of `add`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any


class Handle:
    """Handle of one hook."""

    def __init__(self, hooks: dict[int, Callable[..., Any]], key: int) -> None:
        self._hooks = hooks
        self._key = key

    def remove(self) -> None:
        """Remove the hook, so that it is not called."""
        self._hooks.pop(self._key, None)


class Hooks:
    """The hooks of one event."""

    def __init__(self) -> None:
        self._hooks: dict[int, Callable[..., Any]] = {}
        self._keys = itertools.count()

    def add(self, hook: Callable[..., Any]) -> Handle:
        """Add `hook`; the next `call_once` calls it."""
        key = next(self._keys)
        self._hooks[key] = hook
        return Handle(self._hooks, key)

    def call_once(self, *args: Any) -> None:
        """Call all hooks and remove them."""
        hooks = list(self._hooks.values())
        self._hooks.clear()
        for hook in hooks:
            hook(*args)
