"""Gradient reductions in progress."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from clary.train.parallel.sharded.flat import Flat

MOST_UNDER_WAY = 1  # overlaps with the next unit's backward pass; links carry one reduction at a time anyway


class Reductions:
    """Starts reductions, after waiting for the oldest if too many elements would be in progress.

    Args:
        most_elements: limit of elements of all reductions in progress, unless a single one has more.
        when_done: called with a buffer when its last reduction has ended.
    """

    def __init__(self, most_elements: int, when_done: Callable[[Flat], None]) -> None:
        self._most_elements = most_elements
        self._when_done = when_done
        self._under_way: deque[tuple[Flat, Callable[[], None]]] = deque()

    def start(self, flat: Flat) -> None:
        """Start to reduce the arrived gradients of a buffer.

        Raises: RuntimeError if this or an older collective failed.
        """
        while self._under_way and (
            len(self._under_way) >= MOST_UNDER_WAY
            or sum(one.numel for one, _ in self._under_way) + flat.numel > self._most_elements
        ):
            self._finish_oldest()
        with told(flat, "reduce-scatter of gradients"):
            self._under_way.append((flat, flat.start_reduction()))

    def finish(self) -> None:
        """Wait for all reductions.

        Raises: RuntimeError if a collective failed.
        """
        while self._under_way:
            self._finish_oldest()

    def forget(self) -> None:
        """Drop all reductions, after a failed backward pass."""
        self._under_way.clear()

    def _finish_oldest(self) -> None:
        flat, finish = self._under_way.popleft()
        with told(flat, "reduce-scatter of gradients"):
            finish()
        if not any(one is flat for one, _ in self._under_way):
            self._when_done(flat)


@contextlib.contextmanager
def told(flat: Flat, what: str) -> Iterator[None]:
    """Name the buffer in errors of collectives in this block. Raises: RuntimeError in place of the original error."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"sharded data parallelism: {what} of {flat.name} ({flat.numel} elements) failed: {error}; all replicas "
            "must call the same modules in a step, and all must be alive"
        ) from error
