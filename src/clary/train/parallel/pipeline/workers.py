"""Threads that run one at a time, so that a microbatch can be suspended and resumed.

Where: `server` runs every microbatch and every request on a worker; a worker that must wait for another rank returns
control to the server's loop. No two threads run in parallel, so user code needs no locks.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from clary.train.parallel.pipeline.modes import Modes

_own = threading.local()


class Abandoned(BaseException):
    """Ends a worker whose step has failed. A BaseException, so that user code does not catch it by accident."""


class Worker:
    """One thread; runs one task after another."""

    def __init__(self) -> None:
        self.task: Any = None  # the owner's identification of the task
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = True
        self.answer: Any = None  # the value for which the worker waits
        self._call: Callable[[], Any] | None = None
        # The waiting thread acquires, the running thread releases; threading's semaphores are several times slower.
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
        """Resume the worker; return when its task has ended or waits again."""
        self._go.release()
        self._back.acquire()

    def wait(self) -> Any:
        """Return control to the owner; once resumed, return the answer. The worker's own thread calls it.

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
        """End the thread of an idle worker."""
        self._go.release()


def own_worker() -> Worker | None:
    """Return the worker of the calling thread, or None."""
    found: Worker | None = getattr(_own, "worker", None)
    return found


class WorkerPool:
    """Keeps idle workers for reuse, since a thread's first operations in torch are slow."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    def take(self) -> Worker:
        """Return an idle worker."""
        return self._idle.pop() if self._idle else Worker()

    def close(self) -> None:
        """End the idle workers."""
        for worker in self._idle:
            worker.end()
        self._idle.clear()

    def give_back(self, worker: Worker) -> None:
        """Return an idle worker to the pool."""
        worker.task = worker.result = worker.error = worker.answer = None
        self._idle.append(worker)
