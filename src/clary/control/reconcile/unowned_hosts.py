"""Release of hosts that no job of the database owns, when the service starts, before its first launch.

Where: `server.core` calls `take_back` at the start, `server.service` runs `reap` as a task, and calls `end_all` if
another service has taken the database over. Such hosts remain if a job's record cannot be read, if the database was
restored from an older backup or created anew, if a service was killed while it gave hosts back, or if a folder was left
over. Their programs would continue to train unseen, hold memory that is counted as free, and overwrite the results of
other jobs. Folders of ended jobs that the database lacks are moved aside, because a new job of that name could not
begin in them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Protocol

from clary.base.errors import ClaryError
from clary.control.background_tasks import keep_running
from clary.control.engines.interface import HeldAttempt, Released
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.hub import JobHub
from clary.control.store.damage import JobUnreadable

START_WAIT_S = 20.0  # longest time for which a start waits for releases; longer releases continue in the background
RETRY_S = 5.0
REAP_INTERVAL_S = 30.0  # an allocation that belongs to no job in two successive passes is ended
_POOL = re.compile(r"pool_[0-9a-f]{12}")

log = logging.getLogger(__name__)


class Hosts(Protocol):
    """Part of the engine that `UnownedHosts` needs."""

    async def unreleased(self) -> list[HeldAttempt]:
        """Return the attempts and pools that were not released."""

    async def end_attempt(self, job_name: str, attempt: int) -> Released:
        """End an attempt's hosts."""

    async def end(self, pool: str) -> Released:
        """End a pool's hosts."""

    async def released_jobs(self) -> list[str]:
        """Return the names of jobs with folders, all of whose attempts are released."""

    async def set_aside(self, job_name: str) -> str:
        """Move the folder of an unknown job to another path."""


class JobReader(Protocol):
    """Part of the store that `UnownedHosts` needs."""

    async def job_names(self) -> set[str]:
        """Return the names of all jobs."""

    async def get_job(self, name: str) -> TrainingJob | None:
        """Read a job; raises JobUnreadable."""

    async def require_lease(self) -> None:
        """Raise StaleLease if another service owns the jobs of the database by now."""


class UnownedHosts:
    """Releases hosts that no job owns."""

    def __init__(self, hub: JobHub, engine: Hosts, store: JobReader) -> None:
        self._hub = hub
        self._engine = engine
        self._store = store
        self._task: asyncio.Task[None] | None = None

    async def take_back(self) -> None:
        """Release hosts that no job owns; releases that last longer than START_WAIT_S continue in the background."""
        try:
            found = [held for held in await self._engine.unreleased() if not self._is_owned(held)]
        except ClaryError as error:
            if not error.retryable:
                raise
            log.warning("hosts without a job are looked for later: %s", error.message)  # `reap` releases these
            return
        await self._set_aside_unknown()
        if not found:
            return
        found.sort(key=lambda held: not _POOL.fullmatch(held.name))  # pools first: their agents use attempt folders
        self._task = keep_running("unowned-hosts", lambda: self._release_all(found))
        await asyncio.wait([self._task], timeout=START_WAIT_S)

    async def _set_aside_unknown(self) -> None:
        """Move aside the folders of ended jobs that the database lacks."""
        names = [name for name in await self._engine.released_jobs() if not _POOL.fullmatch(name)]
        unknown = set(names) - await self._store.job_names() if names else set()
        for name in sorted(unknown):
            try:
                log.warning("job %s is unknown: its folder is now %s", name, await self._engine.set_aside(name))
            except ClaryError as error:
                log.warning("the folder of the unknown job %s stays: %s", name, error.message)

    async def reap(self) -> None:
        """Release allocations that no job owns in two successive passes, REAP_INTERVAL_S apart, until cancelled.

        A job's record names its allocation before the allocation is requested from the engine, so an allocation that no
        record names belongs to no job.
        """
        seen_before: set[HeldAttempt] = set()
        while True:
            await asyncio.sleep(REAP_INTERVAL_S)
            try:
                found = {held for held in await self._engine.unreleased() if not self._is_owned(held)}
            except ClaryError as error:
                log.warning("allocations without a job could not be looked for: %s", error.message)
                continue
            for held in sorted(found & seen_before, key=lambda one: one.name):
                await self._is_released(held)
            seen_before = found

    async def close(self) -> None:
        """Leave the remaining hosts to the next start of the service."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _release_all(self, found: list[HeldAttempt]) -> None:
        while found:
            found = [held for held in found if not await self._is_released(held)]
            if found:
                await asyncio.sleep(RETRY_S)

    async def _is_released(self, held: HeldAttempt) -> bool:
        try:
            await self._store.require_lease()  # else the host may belong to a job of the service that has the lease
            if _POOL.fullmatch(held.name):
                released = await self._engine.end(held.name)
                why = "no job holds it"
            else:
                why = await self._why_unowned(held.name)
                released = await self._engine.end_attempt(held.name, held.attempt)
                if why == _UNKNOWN:
                    why = f"{why}; its folder is now {await self._engine.set_aside(held.name)}"
        except ClaryError as error:
            log.warning("%s, attempt %d: hosts without a job stay: %s", held.name, held.attempt, error.message)
            return False
        except Exception:  # boundary: one host's failure must not keep the hosts behind it
            log.exception("%s, attempt %d: hosts without a job stay", held.name, held.attempt)
            return False
        log.warning(
            "%s, attempt %d: its hosts were taken back (%d processes ended): %s",
            held.name,
            held.attempt,
            len(released.killed),
            why,
        )
        return True

    async def _why_unowned(self, name: str) -> str:
        try:
            job = await self._store.get_job(name)
        except JobUnreadable as error:
            return error.message
        return _UNKNOWN if job is None else f"the job is {job.status.value} and this is not its attempt"

    def _is_owned(self, held: HeldAttempt) -> bool:
        if _POOL.fullmatch(held.name):
            jobs = [*self._hub.active_jobs(), *self._hub.waiting_jobs().values()]
            return any(job.pool == held.name for job in jobs)
        job = self._hub.live_job(held.name)
        return job is not None and not job.is_released and job.attempt == held.attempt


async def end_all(engine: Hosts) -> None:
    """End all hosts of this machine, because another service owns their jobs by now and has lost these hosts.

    Their agents report to this service only. The other service starts the jobs again, and these programs would
    overwrite the results.
    """
    held = await engine.unreleased()
    for one in sorted(held, key=lambda one: not _POOL.fullmatch(one.name)):  # pools first, as in `take_back`
        try:
            if _POOL.fullmatch(one.name):
                await engine.end(one.name)
            else:
                await engine.end_attempt(one.name, one.attempt)
        except ClaryError as error:
            log.warning("%s, attempt %d: its hosts stay: %s", one.name, one.attempt, error.message)
        else:
            log.warning("%s, attempt %d: its hosts were ended, for a service elsewhere", one.name, one.attempt)


_UNKNOWN = "the database has no job of that name"
