"""Ensures one service per state folder and per database.

Where: `foundations` enters both context managers before a job is read. The folder's lock ends with the process; the
database's lease expires by itself. The store writes only while this process holds the lease. A service that loses the
lease leaves, and touches no job on its way, because another service manages the jobs now.

The lease's owner is one process, not a folder: two machines or containers may have the same name and the same path. The
lock's file holds the names of the folder's services, so the one that holds the lock knows which owners have ended:

    host:/root/.clary:5f3c...     one line for each; the last line is the service that holds the lock
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from clary.base.errors import EngineError, Fault, StoreError
from clary.control.background_tasks import FailureLog
from clary.control.state_folder import StateFolder
from clary.control.store.errors import StaleLease
from clary.control.store.leases import Lease
from clary.control.store.store import Store

log = logging.getLogger(__name__)

LEASE_NAME = "service"
LEASE_TTL_S = 30.0
LEASE_RENEWAL_S = 10.0
LEASE_RETRY_S = 1.0  # pause after a failed renewal
_LOCK_TRIES, _LOCK_PAUSE_S = 5, 0.02
_MAX_NAMES_BYTES = 1 << 16  # of the lock's file that are read; each line is a short name


@dataclass(frozen=True, kw_only=True)
class FolderOwner:
    """This process as the only service of a state folder."""

    path: Path  # file of the folder's lock
    name: str  # owner of the database's lease; no other process has this name
    ended: tuple[str, ...] = ()  # names of the folder's earlier services on this machine

    def announce(self) -> None:
        """Add this process's name to the file, before it may take the lease."""
        self._write("".join(f"{name}\n" for name in (*self.ended, self.name)))

    def settle(self) -> None:
        """Keep only this process's name, because it has taken the lease: no earlier service can have it."""
        self._write(f"{self.name}\n")

    def _write(self, text: str) -> None:
        # One write at the start, then the truncation: a kill in between leaves the names and a rest of the old content.
        data = text.encode("utf-8", "surrogateescape")
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.pwrite(descriptor, data, 0)
                os.ftruncate(descriptor, len(data))
            finally:
                os.close(descriptor)
        except OSError as error:
            words = "after a kill, the next service waits until the lease of this one has expired"
            log.warning("%s cannot be written: %s; %s", self.path, error.strerror, words)


@contextlib.contextmanager
def sole_owner(folder: StateFolder) -> Iterator[FolderOwner]:
    """Hold the folder's lock; raises EngineError if another service has it, or if its file cannot be opened."""
    path = folder.root / "run" / "service.lock"
    with _opened(path, folder) as lock:
        for num_left in reversed(range(_LOCK_TRIES)):  # `is_owned` of a command holds the lock for a moment
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if not num_left:
                    raise EngineError(
                        f"another service runs for {folder.root}; stop it with: clary down", fault=Fault.USER
                    ) from error
                time.sleep(_LOCK_PAUSE_S)
        lock.seek(0)
        names = lock.read(_MAX_NAMES_BYTES).decode("utf-8", "surrogateescape").splitlines()
        # A lock proves nothing about services of other machines: some file systems keep locks per machine.
        here = f"{socket.gethostname()}:{folder.root}:"
        ended = tuple(dict.fromkeys(name for name in names if name.startswith(here)))
        yield FolderOwner(path=path, name=f"{here}{secrets.token_hex(8)}", ended=ended)


def is_owned(folder: StateFolder) -> bool:
    """Whether a service has the folder, or starts there. Raises: OSError if the lock's file cannot be read."""
    try:
        with (folder.root / "run" / "service.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _opened(path: Path, folder: StateFolder) -> BinaryIO:
    """Open the lock's file; a folder to which only backups were copied has no `run` yet."""
    try:
        path.parent.mkdir(exist_ok=True)
        return path.open("a+b")  # a second service must not empty the file
    except OSError as error:
        raise EngineError(
            f"state folder {folder.root}: {error.filename} cannot be opened: {error.strerror}; name your state folder "
            "with CLARY_HOME, and see that you may write there",
            fault=Fault.USER,
        ) from error


class HeldLease:
    """The lease that this service holds or has lost.

    Args:
        owner: name of this process.
        leave: set when the lease is lost.
        former_alive_at: last sign of life of the service before this one, if it did not end in order with its jobs.
    """

    def __init__(self, owner: str, leave: asyncio.Event, *, former_alive_at: datetime | None = None) -> None:
        self.owner = owner
        self.former_alive_at = former_alive_at
        self.is_lost = False  # then no job may be touched any more
        self._leave = leave

    def lose(self, stale: StaleLease) -> None:
        """Take note that another service has taken the lease, and let this one leave."""
        if not self.is_lost:
            self.is_lost = True
            log.error("the service leaves and touches no job any more: %s", stale.message)
        self._leave.set()


@contextlib.asynccontextmanager
async def database_lease(
    store: Store, owner: FolderOwner, leave: asyncio.Event, *, jobs_go_on: Callable[[], bool] = lambda: False
) -> AsyncIterator[HeldLease]:
    """Hold the database's service lease, and let the store write only under it.

    If the lease is lost, this service stops: another one manages the jobs.

    Args:
        store: store of the database.
        owner: this process, the only one of its folder; it takes over the lease of the folder's last service at once.
        leave: set when the lease is lost.
        jobs_go_on: returns at the end whether jobs outlive this service; the next one then learns when it ended.
    Raises: StoreError if another service renews the lease, which shows that it is alive.
    """
    owner.announce()
    lease = await _acquire(store, owner)
    held = HeldLease(owner.name, leave, former_alive_at=lease.former_renewed_at)
    store.act_under(lease, on_loss=held.lose)
    owner.settle()
    task = asyncio.create_task(_renew(store, lease, held), name="lease")
    try:
        yield held
    finally:
        await cancel(task)
        with contextlib.suppress(StoreError):
            await store.release_lease(lease, renewed_for_s=LEASE_TTL_S if jobs_go_on() else 0.0)


async def _acquire(store: Store, owner: FolderOwner) -> Lease:
    """Wait until the lease is free; raises StoreError at the deadline."""
    deadline = asyncio.get_running_loop().time() + LEASE_TTL_S + LEASE_RENEWAL_S
    while True:
        failure = StoreError("another service runs the jobs of this database; stop it, or use another database")
        try:
            lease = await store.acquire_lease(LEASE_NAME, owner.name, LEASE_TTL_S, ended=owner.ended)
            if lease is not None:
                return lease
        except StoreError as error:
            # A service that was paused within a transaction holds the lease's row until the server ends its session.
            if not error.retryable:
                raise
            failure = error
        # The lease of a killed service expires by itself; a living service renews it.
        if asyncio.get_running_loop().time() > deadline:
            raise failure
        await asyncio.sleep(1)


async def _renew(store: Store, lease: Lease, held: HeldLease) -> None:
    """Renew until another service holds the lease.

    An unavailable database does not end this service: no other service can take the lease meanwhile, and the end of
    this one would stop every running job.
    """
    failures = FailureLog(log)
    pause_s = LEASE_RENEWAL_S
    while True:
        await asyncio.sleep(pause_s)
        try:
            lease = await store.renew_lease(lease, LEASE_TTL_S)
            pause_s = LEASE_RENEWAL_S
        except StaleLease as stale:
            held.lose(stale)
            return
        except Exception as error:  # noqa: BLE001 - boundary: without renewals, another service would take the lease
            failures.tell("the lease of the database could not be renewed, trying again", error)
            pause_s = min(LEASE_RETRY_S, LEASE_RENEWAL_S)


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
