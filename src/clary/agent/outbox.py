"""Items that the service has not acknowledged yet: numbered from 0, bounded, the oldest given up first and counted.

Where: `metrics.row_store` and `training.finding_store` are outboxes; a `sender` takes stretches of one and acknowledges
them or gives them up, as the service says. It has no thread and no clock: the age of items is judged by comparing
items.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Stretch(Generic[T]):
    """A run of adjacent items of an outbox.

    Attributes:
        first: number of the first.
        num_dropped: items that had been given up when these were taken; all of them were numbered below `first`, or
            never had a number.
    """

    first: int
    items: tuple[T, ...]
    num_dropped: int


class Outbox(Generic[T]):
    """Items in the order of their numbers, each of which is given once; safe for many threads.

    Each item stays until it is acknowledged, or given up: by a caller, or because newer ones need its place.

    Args:
        size_of: returns the bytes of memory that an item takes.
        max_bytes: of all items.
        is_stale: whether the first of two items is too old to be kept beside the second, the newest.
    """

    def __init__(
        self,
        *,
        size_of: Callable[[T], int],
        max_bytes: int,
        is_stale: Callable[[T, T], bool] = lambda oldest, newest: False,
    ) -> None:
        self._size_of = size_of
        self._max_bytes = max_bytes
        self._is_stale = is_stale
        self._lock = threading.Lock()
        self._items: deque[T] = deque()
        self._first = 0
        self._size_bytes = 0
        self.num_dropped = 0  # items that were given up

    @property
    def first(self) -> int:
        """Number of the oldest item; `end` of an empty outbox."""
        with self._lock:
            return self._first

    @property
    def end(self) -> int:
        """Number that the next item gets."""
        with self._lock:
            return self._first + len(self._items)

    def append(self, item: T) -> None:
        """Add an item, and give up the oldest items that are stale or no longer fit."""
        with self._lock:
            self._items.append(item)
            self._size_bytes += self._size_of(item)
            while self._items and (self._size_bytes > self._max_bytes or self._is_stale(self._items[0], item)):
                self._drop()

    def oldest(self, *, max_items: int, weight_of: Callable[[T], int], max_weight: int) -> Stretch[T]:
        """Return the oldest items: one, however heavy it is, and as many more as fit into both bounds.

        Args:
            max_items: above 0.
            weight_of: returns the weight of an item, in a unit of the caller's.
            max_weight: of all items together.
        """
        chosen: list[T] = []
        weight = 0
        with self._lock:
            for item in self._items:
                weight += weight_of(item)
                if len(chosen) == max_items or (chosen and weight > max_weight):
                    break
                chosen.append(item)
            return Stretch(self._first, tuple(chosen), self.num_dropped)

    def acknowledge(self, end: int) -> None:
        """Forget the items below `end`, which the service has; an `end` beyond all items becomes the next number."""
        with self._lock:
            while self._items and self._first < end:
                self._forget()
            self._first = max(self._first, end)

    def give_up(self, end: int) -> None:
        """Drop the items below a number, and count them as given up."""
        with self._lock:
            while self._items and self._first < end:
                self._drop()

    def _drop(self) -> None:
        self.num_dropped += 1
        self._forget()

    def _forget(self) -> None:
        self._size_bytes -= self._size_of(self._items.popleft())
        self._first += 1
