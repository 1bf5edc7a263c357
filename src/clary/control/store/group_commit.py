"""A thread that writes many operations in one commit.

Where: every change of an open store goes through `GroupCommitWriter`. While one transaction is being forced to disk,
the next operations gather in the queue; the thread then runs all of them in one transaction and commits once. So the
cost of durability is shared, and no success is reported before the data is on disk.

Small operations of one kind that wait for the same commit may be given to one function at once (`run_together`): a
statement for twenty rows costs little more than a statement for one row.

A fence, if one is set, checks at the start of each transaction whether this process may still write.

Failures: an operation that raises is undone and fails alone; a transaction that cannot be committed, for whatever
reason, fails every operation in it, and the next transaction is tried; after the thread has died, every operation
fails, and its error names the first cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from clary.base.errors import NOTHING_CHANGED, Fault, StoreError
from clary.control import effects
from clary.control.store.database import describe_failure, has_no_room, may_repeat

T = TypeVar("T")
Item = TypeVar("Item")

WRITE_TIMEOUT_S = 60.0  # longest time from the call to the commit, including the time in the queue
CLOSE_TIMEOUT_S = 60.0  # longest time to write the queued operations
MAX_BATCH = 256  # operations in a transaction; bounds the time that an operation waits for others
MAX_QUEUED = 20_000  # operations that may be queued; more would time out anyway
_MAX_REPEATS = 5  # of an operation after deadlocks or serialization failures with other services

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Operation:
    """One queued change, with its result once it has run."""

    run: Callable[[Connection], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    num_repeats: int = 0
    must_repeat: bool = False
    value: Any = None
    error: BaseException | None = None
    together: Callable[[Connection, Sequence[Any]], Sequence[Any]] | None = None  # runs many operations at once
    item: Any = None  # this operation's argument for that function
    is_fenced: bool = True  # whether it runs only while the fence allows writes


class GroupCommitWriter:
    """Runs operations on one thread, many per transaction; in order, except grouped and repeated ones.

    Args:
        engine: its transactions take the write lock at their start.
        max_batch: maximum number of operations in a transaction.
        before_commit: called on the thread before each batch; an error that it raises prevents the batch's transaction.
    """

    def __init__(
        self, engine: Engine, *, max_batch: int = MAX_BATCH, before_commit: Callable[[], None] | None = None
    ) -> None:
        self._engine = engine
        self._before_commit = before_commit
        self._fence: Callable[[Connection], None] | None = None
        self._max_batch = max_batch
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._repeats: deque[_Operation] = deque()  # aborted operations to repeat, each in its own transaction
        self._is_closing = False
        self._death: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="clary-store-writer", daemon=True)
        self._thread.start()

    def set_fence(self, fence: Callable[[Connection], None]) -> None:
        """Call `fence` in each transaction before its first fenced operation; all of these fail with its StoreError."""
        self._fence = fence

    async def run(
        self, operation: Callable[[Connection], T], *, timeout_s: float = WRITE_TIMEOUT_S, is_fenced: bool = True
    ) -> T:
        """Run `operation` in a transaction on the writer thread; return its value once that is committed.

        The operation may run more than once; it does not run if this call is cancelled while it is queued.

        Args:
            operation: gets a connection.
            timeout_s: longest time from the call to the commit.
            is_fenced: whether the fence must allow the operation.
        Raises: the operation's or the fence's error; then none of its changes were written. StoreError if the commit
            failed, the store is closed, overloaded or broken; after a timeout the outcome is unknown.
        """
        loop = asyncio.get_running_loop()
        pending = _Operation(operation, loop, loop.create_future(), is_fenced=is_fenced)
        value: T = await self._done(pending, timeout_s=timeout_s)
        return value

    async def run_together(
        self,
        operation: Callable[[Connection, Sequence[Item]], Sequence[T]],
        item: Item,
        *,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> T:
        """Run `operation` once on the items of several waiting calls; return its value for `item`.

        The operation gets items in the order of calls, and returns a value for each. If it raises, it is run again for
        each item by itself, and only the items for which it raises again fail. In all other respects this is like
        `run`.

        Args:
            operation: gets a connection and items; only calls with the same `operation` object are run together.
            item: argument of this call.
            timeout_s: longest time from the call to the commit.
        """
        loop = asyncio.get_running_loop()
        pending = _Operation(
            lambda connection: operation(connection, [item])[0],
            loop,
            loop.create_future(),
            together=operation,
            item=item,
        )
        value: T = await self._done(pending, timeout_s=timeout_s)
        return value

    async def close(self) -> None:
        """Write the queued operations, then end the thread; later calls are refused.

        Raises: StoreError if the thread is still busy after CLOSE_TIMEOUT_S.
        """
        if not self._is_closing:
            self._is_closing = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise StoreError(
                f"the store's writer was still busy {CLOSE_TIMEOUT_S:g} s after close, with {self._queue.qsize()} "
                f"operations queued: what was not acknowledged may be lost",
                fault=Fault.INFRASTRUCTURE,
            )

    async def _done(self, pending: _Operation, *, timeout_s: float) -> Any:
        """Queue an operation and wait for its result."""
        self._refuse_if_unusable()
        self._queue.put(pending)
        if self._death is not None:  # the thread died after the first check, and may have emptied the queue already
            self._refuse_if_unusable()
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                value = await pending.future
            effects.note()
            return value
        except TimeoutError as error:
            if not limit.expired():  # the operation's own error
                raise
            raise StoreError(
                f"a write was not on disk after {timeout_s:g} s, with {self._queue.qsize()} more waiting: it may or "
                f"may not happen; read before trying again, and look for a slow disk or a long lock on the database",
                fault=Fault.INFRASTRUCTURE,
                retryable=True,
            ) from error

    def _refuse_if_unusable(self) -> None:
        if self._death is not None:
            raise StoreError(
                f"the store's writer has died, nothing can be written until the service restarts; first cause: "
                f"{type(self._death).__name__}: {self._death}",
                fault=Fault.INTERNAL,
            ) from self._death
        if self._is_closing:
            raise StoreError("the store is closed: nothing can be written any more", fault=Fault.INTERNAL)
        if self._queue.qsize() >= MAX_QUEUED:
            raise StoreError(
                f"{MAX_QUEUED} writes wait already: try again later, and look for a slow disk",
                fault=Fault.INFRASTRUCTURE,
                retryable=True,
            )

    def _serve(self) -> None:
        batch: Sequence[_Operation] = ()
        try:
            while batch := self._next_batch():
                self._commit(batch)
                _deliver([operation for operation in batch if not operation.must_repeat])
                self._repeats.extend(_as_new(operation) for operation in batch if operation.must_repeat)
                batch = ()
            self._refuse([*self._drain()], "the store was closed before this write was committed")
        except BaseException as error:  # noqa: BLE001 - boundary: the thread's death must reach those who wait for it
            self._death = error
            words = f"the store's writer died and this write was not confirmed: {type(error).__name__}: {error}"
            self._refuse([*batch, *self._drain()], words)

    def _refuse(self, operations: Sequence[_Operation], words: str) -> None:
        for operation in operations:
            operation.error = StoreError(words, fault=Fault.INTERNAL)
        _deliver(operations)

    def _next_batch(self) -> list[_Operation]:
        """Wait for work; an empty list means that the store closes."""
        while self._repeats:
            repeated = self._repeats.popleft()
            if not repeated.future.cancelled():
                return [repeated]
        batch: list[_Operation] = []
        while len(batch) < self._max_batch:
            try:
                operation = self._queue.get(block=not batch)
            except queue.Empty:
                break
            if operation is None:
                self._queue.put(None)  # the next call reads it again and returns an empty list
                break
            # An operation whose call was cancelled is dropped here, before it begins; later it could not be dropped.
            if not operation.future.cancelled():
                batch.append(operation)
        return batch

    def _drain(self) -> list[_Operation]:
        left = list(self._repeats)
        while True:
            try:
                operation = self._queue.get_nowait()
            except queue.Empty:
                return left
            if operation is not None:
                left.append(operation)

    def _commit(self, batch: Sequence[_Operation]) -> None:
        """Run the batch in one transaction; afterwards every operation has its value or error, or will be repeated."""
        # Savepoints cost two round trips per operation, and failures are rare: run without savepoints; if an operation
        # fails, roll back and run all again with a savepoint each.
        running: _Operation | None = None
        is_committing = False  # only a failed commit leaves open whether the database has the changes
        try:
            if self._before_commit is not None:
                self._before_commit()
            with self._engine.begin() as connection:
                for operations in _by_kind(self._admitted(connection, batch)):
                    running = operations[0]
                    _run(connection, operations)
                running, is_committing = None, True
        except Exception as error:  # noqa: BLE001 - boundary: whatever one operation raises is its own caller's
            if running is None:
                _fail_all(batch, error, nothing_changed=not is_committing)
            elif len(batch) == 1:
                _fail_one(running, error)
            elif isinstance(error, SQLAlchemyError) and may_repeat(error):
                # Two services have locked the same rows in different orders. Single operations lock fewer rows.
                for operation in batch:
                    operation.must_repeat = True
            else:
                self._commit_apart(batch)

    def _commit_apart(self, batch: Sequence[_Operation]) -> None:
        """Run the batch in one transaction with a savepoint around each operation."""
        is_committing = False
        try:
            with self._engine.begin() as connection:
                for operation in self._admitted(connection, batch):
                    _run_under_savepoint(connection, operation)
                is_committing = True
        except Exception as error:  # noqa: BLE001 - boundary: as in `_commit`
            _fail_all(batch, error, nothing_changed=not is_committing)

    def _admitted(self, connection: Connection, batch: Sequence[_Operation]) -> Sequence[_Operation]:
        """Return the operations that the fence allows; the others get its error."""
        fenced = [operation for operation in batch if operation.is_fenced]
        if self._fence is None or not fenced:
            return batch
        try:
            self._fence(connection)
        except StoreError as error:
            for operation in fenced:
                operation.error = error
            return [operation for operation in batch if not operation.is_fenced]
        return batch


def _by_kind(batch: Sequence[_Operation]) -> list[list[_Operation]]:
    """Return operations in groups that run together; groups are in the order of their first operations."""
    kinds: dict[object, list[_Operation]] = {}
    for number, operation in enumerate(batch):
        kinds.setdefault(operation.together or number, []).append(operation)
    return list(kinds.values())


def _run(connection: Connection, operations: Sequence[_Operation]) -> None:
    """Run operations of one kind."""
    first = operations[0]
    if first.together is None or len(operations) == 1:
        first.value = first.run(connection)
        return
    values = first.together(connection, [operation.item for operation in operations])
    for operation, value in zip(operations, values, strict=True):
        operation.value = value


def _run_under_savepoint(connection: Connection, operation: _Operation) -> None:
    """Run one operation; if it raises, undo it alone and keep its error.

    Raises: SQLAlchemyError if the savepoint itself is lost, and with it the transaction.
    """
    connection.exec_driver_sql("SAVEPOINT operation")
    try:
        operation.value = operation.run(connection)
    except Exception as error:  # noqa: BLE001 - boundary: whatever one operation raises is its own caller's
        _fail_one(operation, error)
        try:
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT operation")
        except SQLAlchemyError as lost:
            # Some failures (a full disk) end the whole transaction; the first error has the reason, not this one.
            raise (error if isinstance(error, SQLAlchemyError) else lost) from lost
    connection.exec_driver_sql("RELEASE SAVEPOINT operation")


def _fail_one(operation: _Operation, error: Exception) -> None:
    operation.error = error
    if isinstance(error, SQLAlchemyError):
        operation.error = describe_failure("a write was refused", error, nothing_changed=True)
        operation.error.__cause__ = error
        operation.must_repeat = may_repeat(error) and operation.num_repeats < _MAX_REPEATS


def _fail_all(batch: Sequence[_Operation], error: Exception, *, nothing_changed: bool) -> None:
    what = "the change was not made"
    if not nothing_changed and not (isinstance(error, SQLAlchemyError) and has_no_room(error)):
        what = (
            f"a write was not confirmed, because the transaction that it shared with {len(batch) - 1} others failed; "
            "read before trying again"
        )
    if not isinstance(error, SQLAlchemyError | OSError):
        # Not raised: a thread that ends would refuse all later writes, while the service would seem to run.
        _log.error("a transaction of the store failed by a defect of the service", exc_info=error)
    for operation in batch:
        operation.must_repeat = False
        operation.error = _described(what, error, nothing_changed=nothing_changed)
        operation.error.__cause__ = error


def _described(what: str, error: Exception, *, nothing_changed: bool) -> StoreError:
    if isinstance(error, SQLAlchemyError):
        return describe_failure(what, error, nothing_changed=nothing_changed)
    is_outside = isinstance(error, OSError)
    return StoreError(
        f"{what}: {type(error).__name__}: {error}",
        fault=Fault.INFRASTRUCTURE if is_outside else Fault.INTERNAL,
        retryable=is_outside,
        details={NOTHING_CHANGED: True} if nothing_changed else None,
    )


def _as_new(operation: _Operation) -> _Operation:
    operation.num_repeats += 1
    operation.must_repeat = False
    operation.error = None
    return operation


def _deliver(batch: Sequence[_Operation]) -> None:
    """Pass results to the waiting event loops, with one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Operation]] = {}
    for operation in batch:
        by_loop.setdefault(operation.loop, []).append(operation)
    for loop, operations in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the event loop is closed, so its callers have ended
            loop.call_soon_threadsafe(_resolve, operations)


def _resolve(operations: Sequence[_Operation]) -> None:
    for operation in operations:
        if operation.future.done():  # its call was cancelled or timed out
            continue
        if operation.error is None:
            operation.future.set_result(operation.value)
        else:
            operation.future.set_exception(operation.error)
