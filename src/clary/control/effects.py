"""Changes that a request has made so far, so that a failure after a change is not reported as one without effect.

Where: `services.dispatch` watches each call; the store's writer and handlers with effects outside of the database note
them. A single write or read knows only of itself that it may be repeated (NOTHING_CHANGED).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Effects:
    """Whether a request has changed something, or may have."""

    are_any: bool = False


_effects: ContextVar[Effects | None] = ContextVar("effects", default=None)


@contextmanager
def watched() -> Iterator[Effects]:
    """Yield the effects of the block, also those of tasks that it starts."""
    effects = Effects()
    token = _effects.set(effects)
    try:
        yield effects
    finally:
        _effects.reset(token)


def note() -> None:
    """Record that the request which is being handled has changed something; does nothing outside of a request."""
    if (effects := _effects.get()) is not None:
        effects.are_any = True
