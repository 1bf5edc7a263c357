"""The thread that ends futures of operations under way; each group has one, started when first needed.

Where: `work.PendingWork.get_future` hands over its work; the thread blocks in the core, without the interpreter lock,
until a handed-over operation has ended. It gets only operations with a future, and operations whose work was dropped
before the end: the core still uses their memory, which is kept until then.

Callbacks of a future run in the thread that ends it. A callback that starts operations and waits for their futures, as
the PowerSGD hook of DDP does, would wait for itself; so a future requested in a callback starts one more thread, which
stays.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from clary.train._native.errors import CollectiveError
from clary.train._native.interface import Core

_log = logging.getLogger(__name__)
_LOOK_S = 60.0  # limit of one call that blocks in the core; a closed core returns at once
_JOIN_S = 10.0  # longest wait for each thread when the group is closed


class _Ending(Protocol):
    """An operation whose end the thread waits for."""

    @property
    def ticket(self) -> int:
        """Number that identifies the operation in the core."""

    def take_end(self) -> None:
        """Fetch the operation's outcome from the core."""

    def tell(self) -> None:
        """End the future; runs its callbacks."""


class _Dropped:
    """An operation whose work was dropped: keeps its memory alive and finishes it; it has no future."""

    def __init__(self, core: Core, ticket: int, held: Any, finish: Callable[[], None] | None) -> None:
        self.ticket = ticket
        self._core = core
        self._held = held
        self._finish = finish

    def take_end(self) -> None:
        try:
            self._core.wait(self.ticket, None)
        except CollectiveError:
            return  # the group is poisoned: its next call raises the cause
        if self._finish is not None:
            self._finish()

    def tell(self) -> None:
        """Do nothing."""


class CompletionThread:
    """Ends works as their operations end.

    Args:
        core: of the group.
        name, rank: of the group and of this process in it, for messages.
    """

    def __init__(self, core: Core, name: str, rank: int) -> None:
        self.name = name
        self.rank = rank
        self._core = core
        self._works: dict[int, _Ending] = {}
        # Re-entrant: garbage collection may delete a work, which then calls `adopt`, while the lock is held.
        self._ends = threading.Condition(threading.RLock())
        self._threads: list[threading.Thread] = []
        self._num_idle = 0  # threads that are not in a callback
        self._turn = threading.Lock()  # to block in the core, one thread at a time
        self._is_closed = False

    def watch(self, work: _Ending) -> bool:
        """End `work` when its operation ends; False if the group was closed, which has already ended it."""
        with self._ends:
            self._works[work.ticket] = work
            is_in_callback = self._num_idle == 0 and threading.current_thread() in self._threads
            if (not self._threads or is_in_callback) and not self._is_closed:
                thread = threading.Thread(target=self._run, name=f"clary-completion-{self.name}", daemon=True)
                self._threads.append(thread)
                self._num_idle += 1
                thread.start()
        try:
            self._core.watch(work.ticket)
        except CollectiveError:
            # Closed. The thread may have taken the work with the other unfinished works.
            return self._works.pop(work.ticket, None) is None
        return True

    def adopt(self, ticket: int, held: Any, finish: Callable[[], None] | None) -> None:
        """Keep the memory of an operation whose work was dropped until the operation has ended.

        Args:
            ticket: ticket from the core that nothing has waited for yet.
            held: owns the memory.
            finish: runs after success; None does nothing.
        """
        self.watch(_Dropped(self._core, ticket, held, finish))

    def await_end(self, has_ended: Callable[[], bool], limit_s: float | None) -> bool:
        """Wait until another thread has fetched an operation's outcome; False when `limit_s` passed first."""
        with self._ends:
            return self._ends.wait_for(has_ended, limit_s)

    def wake(self) -> None:
        """Have the callers of `await_end` look again."""
        with self._ends:
            self._ends.notify_all()

    def join(self) -> None:
        """Wait for the threads after the core was closed; unfinished operations fail."""
        with self._ends:
            self._is_closed = True
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)

    def _run(self) -> None:
        while (ticket := self._next()) >= 0:
            self._end(self._works.pop(ticket, None))
        while self._works:
            try:
                _, work = self._works.popitem()
            except KeyError:  # another thread took the last work
                return
            self._end(work)
            del work

    def _next(self) -> int:
        with self._turn:
            return self._core.next_watched(_LOOK_S)

    def _end(self, work: _Ending | None) -> None:
        if work is None:  # `watch` took it back
            return
        self._survive(work.take_end, "an operation that nothing waits for failed")
        with self._ends:
            self._ends.notify_all()
            self._num_idle -= 1
        self._survive(work.tell, "the future of an operation was not ended")
        with self._ends:
            self._num_idle += 1

    def _survive(self, step: Callable[[], None], what: str) -> None:
        try:
            step()
        except BaseException:  # noqa: BLE001 - SystemExit too: the thread serves all later futures
            _log.exception("rank %d of %s: %s", self.rank, self.name, what)
