"""Choice of buffers to gather ahead: the ones that followed a buffer the last time, if memory allows."""

from __future__ import annotations

from clary.train.parallel.sharded.flat import Flat


class Foresight:
    """Remembers which buffer is needed after which, in forward and in backward passes apart.

    All ranks see the same order, so all look ahead alike.

    Args:
        max_live: elements that may be gathered at once with what is ahead.
        depth: buffers ahead.
    """

    def __init__(self, max_live: int, depth: int) -> None:
        self._max_live = max_live
        self._depth = depth
        self._next: dict[tuple[bool, Flat], Flat] = {}
        self._last: Flat | None = None

    def begin_pass(self) -> None:
        """Forget the last buffer: nothing follows it."""
        self._last = None

    def after(self, flat: Flat, *, backward: bool, live: int) -> list[Flat]:
        """Take note that a buffer is needed now; return those to gather ahead.

        Args:
            live: elements that are gathered, or being gathered, now.
        """
        if self._last is not None and self._last is not flat:
            self._next[backward, self._last] = flat
        self._last = flat
        ahead: list[Flat] = []
        following = flat
        while len(ahead) < self._depth:
            found = self._next.get((backward, following))
            if found is None or found is flat or found in ahead:
                break
            following = found
            if not found.is_claimed:
                if live + found.numel > self._max_live:
                    break
                live += found.numel
            ahead.append(found)
        return ahead
