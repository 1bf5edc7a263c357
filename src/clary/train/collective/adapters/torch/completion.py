"""The thread that ends futures of operations under way, one a group, started by the first that needs it.

Where: `work.PendingWork.get_future` hands over its work; the thread blocks in the core, without the interpreter lock,
until a handed-over operation has ended. Operations that nobody asks a future of never come here, but for those whose
work was dropped before its end: they are kept until then, because the core still uses their memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from clary.train._native.interface import Core
from clary.train.collective.errors import CollectiveError

_LOOK_S = 60.0  # how long the core is asked to block; a closed core answers at once
_JOIN_S = 10.0  # longest wait for the thread when the group is closed


class _Ending(Protocol):
    """What waits here for its end."""

    @property
    def ticket(self) -> int:
        """Name of the operation in the core."""

    def end_from_completion(self) -> None:
        """Take the end from the core and tell who waits."""


class _Dropped:
    """An operation whose work nobody holds any more: keeps its memory alive, finishes it, tells nobody."""

    def __init__(self, core: Core, ticket: int, held: Any, finish: Callable[[], None] | None) -> None:
        self.ticket = ticket
        self._core = core
        self._held = held
        self._finish = finish

    def end_from_completion(self) -> None:
        try:
            self._core.wait(self.ticket, None)
        except CollectiveError:
            return  # the group is poisoned: its next call says so
        if self._finish is not None:
            self._finish()


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
        # Re-entrant: a work may be dropped, and adopted, by a collection that strikes while the lock is held.
        self._ends = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def watch(self, work: _Ending) -> bool:
        """End `work` when its operation ends; False if the group was closed, so that it has ended already."""
        with self._ends:
            self._works[work.ticket] = work
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name=f"clary-completion-{self.name}", daemon=True)
                self._thread.start()
        try:
            self._core.watch(work.ticket)
        except CollectiveError:
            # Closed. The thread may have taken the work with the rest of what had not ended.
            return self._works.pop(work.ticket, None) is None
        return True

    def adopt(self, ticket: int, held: Any, finish: Callable[[], None] | None) -> None:
        """Keep the memory of an operation whose work was dropped until the operation has ended."""
        self.watch(_Dropped(self._core, ticket, held, finish))

    def await_end(self, has_ended: Callable[[], bool], limit_s: float | None) -> bool:
        """Wait until a watched operation has ended; False when `limit_s` passed first."""
        with self._ends:
            return self._ends.wait_for(has_ended, limit_s)

    def join(self) -> None:
        """Wait for the thread after the core was closed; what had not ended fails."""
        with self._ends:
            self._is_closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def _run(self) -> None:
        while (ticket := self._core.next_watched(_LOOK_S)) >= 0:
            self._end(self._works.pop(ticket, None))
        while self._works:
            self._end(self._works.popitem()[1])

    def _end(self, work: _Ending | None) -> None:
        if work is None:  # `watch` took it back
            return
        work.end_from_completion()
        with self._ends:
            self._ends.notify_all()
