"""Ensures one service per state folder and per database.

Where: `foundations` enters both context managers before a job is read. The folder's lock ends with the process; the
database's lease expires by itself, and a service that loses the lease stops, because another service manages the jobs
now.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import socket
from collections.abc import AsyncIterator, Iterator

from clary.base.errors import EngineError, Fault, StoreError
from clary.control.state_folder import StateFolder
from clary.control.store.errors import StaleLease
from clary.control.store.leases import Lease
from clary.control.store.store import Store

log = logging.getLogger(__name__)

LEASE_NAME = "service"
LEASE_TTL_S = 30.0
LEASE_RENEWAL_S = 10.0
LEASE_RETRY_S = 1.0  # pause after a failed renewal


@contextlib.contextmanager
def sole_owner(folder: StateFolder) -> Iterator[None]:
    """Hold the folder's lock; raises EngineError if another service has it."""
    path = folder.root / "run" / "service.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EngineError(
                f"another service runs for {folder.root}; stop it with: clary down", fault=Fault.USER
            ) from error
        yield


@contextlib.asynccontextmanager
async def database_lease(store: Store, folder: StateFolder, leave: asyncio.Event) -> AsyncIterator[None]:
    """Hold the database's service lease; if the lease is lost, this service stops: another one manages the jobs.

    Args:
        store: store of the database.
        folder: state folder, which identifies the owner: the folder's next service takes over the lease at once.
        leave: set when the lease is lost.
    Raises: StoreError if another service renews the lease, which shows that it is alive.
    """
    # The folder's lock keeps a second service out, so the next service of this folder may take the lease over.
    owner = f"{socket.gethostname()}:{folder.root}"
    deadline = asyncio.get_running_loop().time() + LEASE_TTL_S + LEASE_RENEWAL_S
    while (lease := await store.acquire_lease(LEASE_NAME, owner, LEASE_TTL_S)) is None:
        # The lease of a killed service expires by itself; a living service renews it.
        if asyncio.get_running_loop().time() > deadline:
            raise StoreError("another service runs the jobs of this database; stop it, or use another database")
        await asyncio.sleep(1)
    task = asyncio.create_task(_renew(store, lease, leave), name="lease")
    try:
        yield
    finally:
        await cancel(task)
        with contextlib.suppress(StoreError):
            await store.release_lease(lease)


async def _renew(store: Store, lease: Lease, leave: asyncio.Event) -> None:
    """Renew until another service holds the lease.

    An unavailable database does not end this service: no other service can take the lease meanwhile, and the end of
    this one would stop every running job.
    """
    pause_s = LEASE_RENEWAL_S
    while True:
        await asyncio.sleep(pause_s)
        try:
            lease = await store.renew_lease(lease, LEASE_TTL_S)
            pause_s = LEASE_RENEWAL_S
        except StaleLease:
            log.exception("the lease of the database is lost; the service stops")
            leave.set()
            return
        except StoreError as error:
            log.warning("the lease of the database could not be renewed, trying again: %s", error.message)
            pause_s = min(LEASE_RETRY_S, LEASE_RENEWAL_S)


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
