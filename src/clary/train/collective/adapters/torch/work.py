"""Work objects, on which torch waits until operations have ended.

Where: `collectives` returns one of these for every call on host memory. DDP and FSDP wait on the future or on the work
itself; `completion` ends the futures of operations that are under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import Work

from clary.train._native.errors import CollectiveTimeout
from clary.train._native.interface import Core
from clary.train.collective.adapters.torch import keeping

if TYPE_CHECKING:
    from clary.train.collective.adapters.torch.completion import CompletionThread

Finish = Callable[[], None]


class EndedWork(Work):
    """An operation that had succeeded when the call returned."""

    def __init__(self, results: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._results = list(results)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True."""
        if keeping.IS_NEEDED:
            keeping.let_go(self)
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> None:
        """Return None: nothing failed."""

    def synchronize(self) -> None:
        """Do nothing: results are ready."""

    def block_current_stream(self) -> None:
        """Do nothing: results are ready."""

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that were written."""
        return self._results

    def source_rank(self) -> int:
        """Return -1: this work is never a receive, and only a receive has a source rank."""
        return -1

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a finished future of the tensors that were written."""
        if keeping.IS_NEEDED:
            keeping.let_go(self)
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._results)
        return future


class PendingWork(Work):
    """An operation under way in a core. It holds the tensors until the operation has ended.

    The core reports the outcome of a ticket only once. The first caller of `wait` fetches it; other callers wait for
    that thread. Once a future was requested, the completion thread fetches it instead, and `wait` waits for that
    thread. No lock is held meanwhile, so that `is_completed` and `get_future` never wait for the operation.

    Args:
        held: every tensor whose memory the operation uses.
        finish: run after success, before any waiter continues.
    """

    def __init__(
        self,
        core: Core,
        ticket: int,
        completion: CompletionThread,
        results: Sequence[torch.Tensor],
        held: Any = None,
        finish: Finish | None = None,
    ) -> None:
        super().__init__()
        self._core = core
        self.ticket = ticket
        self._completion = completion
        self._results = list(results)
        self._held = held
        self._finish = finish
        self._lock = threading.Lock()  # of the members below; never held for longer than a moment
        self._is_fetching = False  # a thread is about to fetch the outcome, other than the completion thread
        self._has_others = False  # other threads wait for that thread
        self._has_ended = False
        self._error: BaseException | None = None
        self._peer = -1
        self._outcome: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end; at most `timeout` if it is given and not zero, after which the operation continues.

        Raises:
            CollectiveTimeout: `timeout` passed first.
            CollectiveError: the operation failed.
        """
        if not self._has_ended:
            limit_s = timeout.total_seconds() if timeout else None
            if not self._await_end(limit_s):
                raise CollectiveTimeout(
                    f"rank {self._completion.rank} of {self._completion.name}: wait(timeout={limit_s:.3f} s) ended "
                    "before the operation did, which goes on; wait longer or abort the group"
                )
        if keeping.IS_NEEDED:
            keeping.let_go(self)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether the operation has ended and its results, if any, are in place; never waits for the operation."""
        if self._has_ended:
            return True
        with self._lock:
            if self._has_ended or self._future is not None or self._is_fetching:
                return self._has_ended
            if not self._core.is_done(self.ticket):
                return False
            self._is_fetching = True
        return self._fetch(None)

    def is_success(self) -> bool:
        """Whether the operation has succeeded."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error of the operation, None without one."""
        return self._error

    def synchronize(self) -> None:
        """Wait for the end, as `wait` does: host memory has no streams to order."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for the end, as `wait` does: host memory has no streams to order."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that the operation writes."""
        return self._results

    def source_rank(self) -> int:
        """Return the rank that a receive took its tensor from; wait first."""
        return self._peer

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors that the operation writes; it carries the error if the operation fails."""
        if keeping.IS_NEEDED:
            keeping.let_go(self)
        with self._lock:
            if self._future is not None:
                return self._future
            self._outcome = torch.futures.Future()
            # If Python sets an exception on a future, C++ code that waits on the future sees it as an ordinary
            # result; only an exception raised inside a callback counts as an error there.
            self._future = self._outcome.then(self._results_or_error)
            has_ended, is_fetching = self._has_ended, self._is_fetching
        if is_fetching:
            pass  # that thread ends the future, or has it ended by the completion thread
        elif has_ended:
            self.tell()
        else:
            self._watch()
        return self._future

    def take_end(self) -> None:
        """Fetch the outcome that the core has reported. Called by the completion thread alone."""
        if not self._has_ended:
            self._settle(None)

    def tell(self) -> None:
        """End the future; runs its callbacks. Called once, by the thread that is to end the future."""
        if self._outcome is not None:
            self._outcome.set_result(None)

    def __del__(self) -> None:
        if not self._has_ended and self._future is None:
            self._completion.adopt(self.ticket, self._held, self._finish)

    def _await_end(self, limit_s: float | None) -> bool:
        """Wait until the operation has ended, in the core or for the thread that does; False after `limit_s`."""
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            with self._lock:
                if self._has_ended:
                    return True
                is_mine = self._future is None and not self._is_fetching
                self._is_fetching = self._is_fetching or is_mine
                self._has_others = self._has_others or not is_mine
            left_s = None if end_s is None else max(end_s - time.monotonic(), 0.0)
            if is_mine:
                return self._fetch(left_s)
            if not self._completion.await_end(self._is_free, left_s):
                return False

    def _is_free(self) -> bool:
        """Whether a waiter has nothing to wait for: the operation has ended, or no thread is to fetch its outcome."""
        return self._has_ended or (self._future is None and not self._is_fetching)

    def _fetch(self, limit_s: float | None) -> bool:
        """Fetch the outcome in this thread, which has set `_is_fetching`; False when `limit_s` passed first."""
        try:
            has_ended = self._settle(limit_s)
        finally:
            with self._lock:
                self._is_fetching = False
                has_future, has_others = self._future is not None, self._has_others
                self._has_others = False
            if has_others:
                self._completion.wake()
            if has_future and self._has_ended:
                # Not in this thread: a callback may wait for what its program does after the wait.
                threading.Thread(target=self.tell, name="clary-completion-once", daemon=True).start()
            elif has_future:
                self._watch()
        return has_ended

    def _watch(self) -> None:
        """Have the completion thread end the future, or end it here if the group was closed."""
        if not self._completion.watch(self):
            self._settle(None)
            self._completion.wake()
            self.tell()

    def _settle(self, limit_s: float | None) -> bool:
        """Fetch the operation's outcome from the core; False when `limit_s` passed first. One thread at a time."""
        try:
            peer = self._core.wait(self.ticket, limit_s)
            if peer is None:
                return False
            self._peer = peer
            if self._finish is not None:
                self._finish()
        except Exception as error:  # noqa: BLE001 - kept for every later wait
            self._error = error
        self._held = self._finish = None
        with self._lock:
            self._has_ended = True
        return True

    def _results_or_error(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._results


class JointWork(Work):
    """Several operations that are waited for together, in the order in which they were called.

    Args:
        results: the tensors that the operations write, in the order in which the caller passed them.
    """

    def __init__(self, works: Sequence[Work], results: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._works = list(works)
        self._results = list(results)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all; `timeout` is for each."""
        for work in self._works:
            work.wait(*(() if timeout is None else (timeout,)))
        if keeping.IS_NEEDED:
            keeping.let_go(self)
        return True

    def is_completed(self) -> bool:
        """Whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have succeeded."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first failure, or None."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def synchronize(self) -> None:
        """Wait for all."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that the operations write."""
        return self._results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors of all works."""
        if keeping.IS_NEEDED:
            keeping.let_go(self)
        together = torch.futures.collect_all([work.get_future() for work in self._works])
        return together.then(self._results_once_good)

    def _results_once_good(self, together: torch.futures.Future[Any]) -> list[torch.Tensor]:
        for future in together.value():
            future.value()  # raises the error of a failed work
        return self._results


ENDED = EndedWork()
"""The work of a blocking call, whose results are ready: torch drops it, or its `wait` returns at once."""
