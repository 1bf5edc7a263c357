"""Bounded queue of items that the service has not yet acknowledged, numbered from 0; drops the oldest first.

Where: `metrics.row_store` and `training.finding_store` are outboxes; a `sender` sends stretches of items and
acknowledges or drops them, depending on the service's answer. An outbox has no thread and no clock: it determines the
age of items by a comparison of items.
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
    """A sequence of adjacent items of an outbox.

    Attributes:
        first: number of the first item.
        num_dropped: number of items dropped before this stretch was read; their numbers, if any, are below `first`.
    """

    first: int
    items: tuple[T, ...]
    num_dropped: int


class Outbox(Generic[T]):
    """Items in the order of their unique numbers; thread-safe.

    Each item stays until it is acknowledged, or dropped by a caller or to make room for newer items.

    Args:
        size_of: returns the bytes of memory used by an item.
        max_bytes: memory limit of all items.
        is_stale: whether the first of two items, the oldest, is too old compared with the second, the newest.
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
        self.num_dropped = 0  # number of dropped items

    @property
    def first(self) -> int:
        """Number of the oldest item; equals `end` if the outbox is empty."""
        with self._lock:
            return self._first

    @property
    def end(self) -> int:
        """Number of the next item to be added."""
        with self._lock:
            return self._first + len(self._items)

    def append(self, item: T) -> None:
        """Add an item, and drop the oldest items that are stale or exceed the limit."""
        with self._lock:
            self._items.append(item)
            self._size_bytes += self._size_of(item)
            while self._items and (self._size_bytes > self._max_bytes or self._is_stale(self._items[0], item)):
                self._drop()

    def oldest(self, *, max_items: int, weight_of: Callable[[T], int], max_weight: int) -> Stretch[T]:
        """Return the oldest items, up to both limits, but at least one.

        Args:
            max_items: above 0.
            weight_of: returns the weight of an item in the unit of `max_weight`.
            max_weight: limit of the items' total weight.
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
        """Remove the items below `end`, which the service has; an `end` beyond all items becomes the next number."""
        with self._lock:
            while self._items and self._first < end:
                self._forget()
            self._first = max(self._first, end)

    def give_up(self, end: int) -> None:
        """Drop the items below a number, and count them as dropped."""
        with self._lock:
            while self._items and self._first < end:
                self._drop()

    def _drop(self) -> None:
        self.num_dropped += 1
        self._forget()

    def _forget(self) -> None:
        self._size_bytes -= self._size_of(self._items.popleft())
        self._first += 1
