"""Choice of buffers to prefetch: buffers that followed a buffer in the previous pass, if memory allows."""

from __future__ import annotations

from clary.train.parallel.sharded.flat import Flat


class Foresight:
    """Records the order in which buffers are needed, separately for forward and backward passes.

    All ranks see the same order, so all ranks prefetch the same buffers.

    Args:
        max_live: number of gathered elements up to which buffers are prefetched, including the prefetched elements.
        depth: maximum number of buffers to prefetch.
    """

    def __init__(self, max_live: int, depth: int) -> None:
        self._max_live = max_live
        self._depth = depth
        self._next: dict[tuple[bool, Flat], Flat] = {}
        self._last: Flat | None = None

    def begin_pass(self) -> None:
        """Forget the last buffer, so that the next buffer does not count as its successor."""
        self._last = None

    def after(self, flat: Flat, *, backward: bool, live: int) -> list[Flat]:
        """Record that a buffer is needed now; return the buffers to prefetch.

        Args:
            live: number of elements that are gathered or being gathered.
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
