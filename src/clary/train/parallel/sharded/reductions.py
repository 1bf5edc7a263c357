"""Reductions of gradients that are under way."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from clary.train.parallel.sharded.flat import Flat

MOST_UNDER_WAY = 1  # it overlaps with the backward pass of the next unit; links carry one at a time anyway


class Reductions:
    """Starts reductions, and first ends the oldest if too many elements would be in progress.

    Args:
        most_elements: of all reductions in progress, unless one alone has more.
        when_done: called with a buffer when its last reduction has ended.
    """

    def __init__(self, most_elements: int, when_done: Callable[[Flat], None]) -> None:
        self._most_elements = most_elements
        self._when_done = when_done
        self._under_way: deque[tuple[Flat, Callable[[], None]]] = deque()

    def start(self, flat: Flat) -> None:
        """Begin to reduce the arrived gradients of a buffer.

        Raises: RuntimeError if a collective failed, this or an older one.
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
    """Name the buffer in errors of collectives in this block. Raises: RuntimeError in place of the original."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"sharded data parallelism: {what} of {flat.name} ({flat.numel} elements) failed: {error}; all replicas "
            "must call the same modules in a step, and all must be alive"
        ) from error
