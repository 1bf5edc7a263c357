"""Handles of pending operations, on which callers wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from clary.train._native.errors import CollectiveError
from clary.train._native.interface import Core
from clary.train.collective.buffers import Buffer

_HAS_ENDED = 0  # cores return it instead of a ticket if the operation has ended


class Work:
    """One operation. Its buffers are kept alive until it has ended, even if no caller waits.

    Until `wait` or `is_done` has returned True, outputs are undefined and inputs must not be changed.
    """

    def __init__(self, core: Core, ticket: int, buffers: Sequence[Buffer]) -> None:
        self._core = core
        self._ticket = ticket
        self._buffers: Sequence[Buffer] = buffers if ticket != _HAS_ENDED else ()
        self._turn = threading.Lock()
        self._has_ended = ticket == _HAS_ENDED
        self._error: Exception | None = None
        self._source = 0

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the operation has ended; return False if `timeout_s` passed first, while the operation continues.

        The operation's own timeout ends it, whatever `timeout_s` is. May be called again, from any thread.
        Raises: CollectiveError with the first cause of the failure; ValueError if sender and receiver named different
            sizes.
        """
        if not self._has_ended and self._turn.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0)):
            try:
                if not self._has_ended:
                    self._ask_core(timeout_s)
            finally:
                self._turn.release()
        if self._error is not None:
            raise self._error
        return self._has_ended

    def is_done(self) -> bool:
        """Whether the operation has ended, with success or failure."""
        if not self._has_ended and self._turn.acquire(blocking=False):  # if it is locked, another thread is waiting
            try:
                if self._core.is_done(self._ticket):
                    self._ask_core(None)
            except CollectiveError as error:  # the group was closed, which invalidates all tickets
                self._end(error)
            finally:
                self._turn.release()
        return self._has_ended

    @property
    def source(self) -> int:
        """The rank that sent, after a receive has ended."""
        return self._source

    def _ask_core(self, timeout_s: float | None) -> None:
        try:
            source = self._core.wait(self._ticket, timeout_s)
        except (CollectiveError, ValueError) as error:
            self._end(error)
            return
        if source is not None:
            self._source = source
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        self._error = error
        self._buffers = ()
        self._has_ended = True


class PendingWorks:
    """The pending works of a group, which keep their buffers alive even if callers have dropped the works."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: deque[Work] = deque()

    def add(self, work: Work) -> None:
        """Keep a work, and drop the oldest ended works: collectives end in the order of their calls."""
        with self._lock:
            while self._works and self._works[0].is_done():
                self._works.popleft()
            self._works.append(work)

    def settle(self) -> None:
        """Record the outcome of all ended works, and drop them; called before and after the core is closed."""
        with self._lock:
            self._works = deque(work for work in self._works if not work.is_done())
