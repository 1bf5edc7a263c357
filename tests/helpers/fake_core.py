"""A fake core of collectives whose operations end when a test ends them."""

from __future__ import annotations

import threading
import time

from clary.train._native.errors import GroupClosed
from clary.train._native.interface import Kind, Operation, ShortCalls


class FakeCore(ShortCalls):
    """Records every call, and returns tickets for asynchronous calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self._changed = threading.Condition()
        self._last = 0
        self._ends: dict[int, tuple[int, Exception | None]] = {}
        self._open: set[int] = set()
        self._watched: set[int] = set()
        self._is_closed = False

    def run(self, operation: Operation) -> int:
        self.calls.append(operation)
        is_message = operation.kind in (Kind.SEND, Kind.RECEIVE)
        return self._ticket() if is_message or operation.asynchronous else 0

    def _ticket(self) -> int:
        with self._changed:
            self._last += 1
            self._open.add(self._last)
            return self._last

    def end(self, ticket: int, error: Exception | None = None, peer: int = 0) -> None:
        """End the operation of a ticket, with an error if one is given."""
        with self._changed:
            self._ends[ticket] = (peer, error)
            self._changed.notify_all()

    @property
    def open_tickets(self) -> set[int]:
        """Return the tickets whose completion the caller has not collected."""
        return set(self._open)

    def wait(self, ticket: int, limit_s: float | None) -> int | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_closed or ticket in self._ends, limit_s):
                return None
            if ticket not in self._open:
                raise AssertionError(f"the end of ticket {ticket} was taken twice")
            self._open.discard(ticket)
            peer, error = self._ends.get(ticket, (0, GroupClosed("closed")))
        if error is not None:
            raise error
        return peer

    def is_done(self, ticket: int) -> bool:
        return ticket in self._ends

    def watch(self, ticket: int) -> None:
        with self._changed:
            if self._is_closed:
                raise GroupClosed("closed")
            self._watched.add(ticket)
            self._changed.notify_all()

    def next_watched(self, limit_s: float) -> int:
        deadline = time.monotonic() + limit_s
        with self._changed:
            while True:
                for ticket in sorted(self._watched & self._ends.keys()):
                    self._watched.discard(ticket)
                    return ticket
                if self._is_closed:
                    return -1
                if not self._changed.wait(max(deadline - time.monotonic(), 0)):
                    return 0

    def abort(self, reason: str) -> None:
        self.calls.append(("abort", reason))

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
