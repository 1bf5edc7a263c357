"""A core that reports each of its operations to a trace.

Where: `cores.open_core` puts it around every core while traces are on. It records the time of each call and the time at
which the operation ended. Every LOOK_S seconds it checks for ended asynchronous operations, so that it notices an end
even before the caller waits. Spans are accurate to LOOK_S.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from clary.train._native.errors import CollectiveError
from clary.train._native.interface import Core, Kind, Operation, ShortCalls
from clary.train.collective import trace

LOOK_S = 0.0005
_JOIN_S = 10.0
_MESSAGES = (Kind.SEND, Kind.RECEIVE)
_MICROSECOND_NS = 1000


class TracedCore(ShortCalls):
    """A core that traces each operation on the lane of its group.

    A collective's span begins once the collective has been called and the previous one has ended; `waited_us` is the
    time from the call to the beginning of the span.
    """

    sum_memory = know_tensors = None  # calls of a core that would bypass the trace

    def __init__(self, core: Core, writer: trace.TraceWriter, group: str) -> None:
        self._core = core
        self._writer = writer
        self._lane = f"{trace.COMMUNICATION} {group}"
        self._pending: dict[int, tuple[Operation, int]] = {}  # operation and time of its call; by ticket, in order
        self._last_end_ns = 0
        self._changed = threading.Condition(threading.RLock())
        self._is_open = True
        self._looking = threading.Thread(target=self._look, name=f"clary-trace-{group}", daemon=True)
        self._looking.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def run(self, operation: Operation) -> int:
        """Begin an operation as the core does."""
        asked_ns = time.perf_counter_ns()
        ticket = self._core.run(operation)
        with self._changed:
            if ticket:
                self._pending[ticket] = operation, asked_ns
                self._changed.notify_all()
            else:
                self._report(operation, asked_ns, 0)
        return ticket

    def wait(self, ticket: int, limit_s: float | None) -> int | None:
        """Wait as the core does, and note the end."""
        try:
            peer = self._core.wait(ticket, limit_s)
        except CollectiveError:
            self._note_end(ticket)
            raise
        if peer is not None:
            self._note_end(ticket)
        return peer

    def next_watched(self, limit_s: float) -> int:
        """Wait as the core does, and note the end."""
        ticket = self._core.next_watched(limit_s)
        if ticket > 0:
            self._note_end(ticket)
        return ticket

    def close(self) -> None:
        """Leave the group, and write its trace."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
        self._looking.join(_JOIN_S)
        self._core.close()
        self._writer.flush()

    def _note_end(self, ticket: int) -> None:
        with self._changed:
            pending = self._pending.pop(ticket, None)
            if pending is not None:
                self._report(*pending, ticket)

    def _report(self, operation: Operation, asked_ns: int, ticket: int) -> None:
        end_ns = time.perf_counter_ns()
        name, num_bytes = operation.kind.name.lower(), operation.num_bytes
        if operation.kind in _MESSAGES:
            self._writer.loose_span(self._lane, name, ticket, asked_ns, end_ns, bytes=num_bytes)
            return
        begin_ns = max(asked_ns, self._last_end_ns)
        self._last_end_ns = end_ns
        waited_us = (begin_ns - asked_ns) / _MICROSECOND_NS
        self._writer.span(self._lane, name, begin_ns, end_ns, bytes=num_bytes, waited_us=round(waited_us))

    def _look(self) -> None:
        while self._is_open:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or not self._is_open)
                tickets = list(self._pending)
            try:
                for ticket in tickets:
                    if self._is_open and self._core.is_done(ticket):
                        self._note_end(ticket)
            except CollectiveError:
                return  # the core was closed meanwhile
            time.sleep(LOOK_S)
