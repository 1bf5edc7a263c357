"""Threads of which one at a time has the turn, so that a program can stop in the middle and go on later.

Where: `server` runs every microbatch, and every request, on a worker: when it has to wait for another rank the worker
gives its turn back to the server's loop. Nothing of it runs in parallel: user code needs no locks.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from clary.train.parallel.pipeline.modes import Modes

_own = threading.local()


class Abandoned(BaseException):
    """Ends a worker whose step has failed. No Exception: user code must not take it for one of its own."""


class Worker:
    """One thread; runs one task after another."""

    def __init__(self) -> None:
        self.task: Any = None  # what its owner likes to know it by
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = True
        self.answer: Any = None  # what it was waiting for
        self._call: Callable[[], Any] | None = None
        # Taken by who waits, let go by who has the turn: threading's semaphores take several times as long.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._run, name="clary-microbatch", daemon=True)
        self._thread.start()

    def begin(self, task: Any, call: Callable[[], Any]) -> None:
        """Run `call` with the caller's context variables and torch's modes, until it ends or waits."""
        self.task, self.result, self.error, self.is_done = task, None, None, False
        context, modes = contextvars.copy_context(), Modes.of_this_thread()

        def run() -> Any:
            with modes.entered():
                return call()

        self._call = lambda: context.run(run)
        self.go_on()

    def go_on(self) -> None:
        """Give it the turn, and return when it gives it back: it is done, or waits again."""
        self._go.release()
        self._back.acquire()

    def wait(self) -> Any:
        """Give the turn back; return the answer once the owner has set it. The worker's own thread calls it.

        Raises: the answer, if it is an exception.
        """
        self.answer = None
        self._back.release()
        self._go.acquire()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def _run(self) -> None:
        _own.worker = self
        while True:
            self._go.acquire()
            if self._call is None:
                return
            try:
                self.result = self._call()
            except BaseException as error:  # noqa: BLE001 - the owner looks at it
                self.error = error
            self._call, self.is_done = None, True
            self._back.release()

    def end(self) -> None:
        """End the thread of a worker that is done."""
        self._go.release()


def own_worker() -> Worker | None:
    """Return the worker on whose thread this is called; None on others."""
    found: Worker | None = getattr(_own, "worker", None)
    return found


class WorkerPool:
    """Keeps workers that have nothing to do: a thread's first steps in torch are slow."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    def take(self) -> Worker:
        """Return a worker that is free."""
        return self._idle.pop() if self._idle else Worker()

    def close(self) -> None:
        """End the workers that are here."""
        for worker in self._idle:
            worker.end()
        self._idle.clear()

    def give_back(self, worker: Worker) -> None:
        """Take back one that is done."""
        worker.task = worker.result = worker.error = worker.answer = None
        self._idle.append(worker)
