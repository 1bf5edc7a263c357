"""Requests hosts from an engine with a queue, records its reasons to wait, and starts jobs whose hosts are granted.

Where: the reconciler calls this on every pass, instead of `Launcher.start_waiting_jobs`. The engine decides which job
comes first, so no job waits for another job here. The name of the pool is stored before the request is sent to the
engine, so an allocation whose pool is in no job's record belongs to no job.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from clary.base.clock import Clock
from clary.base.errors import ClaryError, EngineError, WireError
from clary.control.engines.cluster.queue import Queue
from clary.control.engines.cluster.scheduler import AllocationEnded, AllocationOrder, HostWish
from clary.control.jobs import attempts, events, health, retries
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.job_tasks import JobTasks
from clary.control.reconcile.launching import Launcher
from clary.control.reconcile.node_admission import NodeAdmission
from clary.control.reconcile.pool_keeping import GIVES_WAY, PoolKeeper
from clary.control.scheduling.placement import HostMapping, Place
from clary.control.settings import Settings

MOST_AT_ONCE = 50  # waiting jobs handled per pass; the next pass handles the following jobs
# between giving up one pool and the next, so that the engine first uses the nodes of the earlier one
GIVE_WAY_INTERVAL_S = 5.0
MARGIN_S = 600  # seconds of an allocation beyond a job's own limits, for boots, environments, channels

log = logging.getLogger(__name__)


class Doors(Protocol):
    """The part of an engine's enrolments that `expect_boots` needs."""

    def expect(self, tag: str, num_hosts: int) -> None:
        """Allow boots of an allocation to enrol; raises EngineError for a damaged record."""


def expect_boots(hub: JobHub, doors: Doors) -> None:
    """Admit the boots of all jobs' pools before the first boot can poll: a boot that is not admitted exits.

    Where: `core` calls it when the jobs of an earlier service have been loaded. Until then the boots keep polling.
    """
    for job in (*hub.active_jobs(), *hub.waiting_jobs().values()):
        if not job.pool:
            continue
        try:
            doors.expect(job.pool, JobRequest(job.request).num_hosts)
        except EngineError as error:
            # the launch reports the error in the job
            log.warning("job %s: no host of %s is admitted: %s", job.name, job.pool, error.message)


class Granter:
    """Starts the waiting jobs of an engine with a queue."""

    def __init__(
        self,
        *,
        hub: JobHub,
        queue: Queue,
        admission: NodeAdmission,
        pools: PoolKeeper,
        launcher: Launcher,
        tasks: JobTasks,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._hub = hub
        self._queue = queue
        self._admission = admission
        self._pools = pools
        self._launcher = launcher
        self._tasks = tasks
        self._settings = settings
        self._clock = clock
        self._looked_at: set[str] = set()
        self._gave_way_s = float("-inf")  # time of the last query whether other jobs want unused hosts

    async def start_waiting_jobs(self) -> None:
        """Try to start waiting jobs, MOST_AT_ONCE at most; then give up unused hosts for jobs that want them."""
        await self._look_at_all()
        await self._give_way()

    async def ask_for_lost(self, job: TrainingJob) -> bool:
        """Request replacements for lost hosts while the other hosts stop, for an attempt that will be retried.

        Living hosts of the pool are not requested again. If the job is not retried after all, the new hosts end with
        its pool. Returns whether the request succeeded.
        """
        if self._tasks.is_busy(job.name) or not job.pool or not _keeps_its_hosts(job):
            return False
        try:
            await self._queue.ask(self._order(job, job.pool, self._admission.mapping(JobRequest(job.request))))
        except (EngineError, WireError) as error:
            log.info("job %s: its lost hosts are requested later, when it waits: %s", job.name, error.message)
            return False
        return True

    async def _give_way(self) -> None:
        """Give up an unused pool if a job, of this service or of others in the engine's queue, waits for its nodes."""
        idle = self._pools.idle()
        now_s = self._clock.monotonic()
        if not idle or now_s - self._gave_way_s < GIVE_WAY_INTERVAL_S:
            return
        self._gave_way_s = now_s
        try:
            wanted = await self._queue.wanted([job.pool for job in idle])
        except EngineError as error:
            log.info("the engine did not say whether other jobs want kept hosts: %s", error.message)
            return
        for job in idle:
            if why := wanted.get(job.pool):
                await self._pools.give_up(job, f"{GIVES_WAY} ({why})")

    async def _look_at_all(self) -> None:
        waiting = list(self._hub.waiting_jobs().values())
        left = [job for job in waiting if job.name not in self._looked_at] or waiting
        self._looked_at = set() if left is waiting else self._looked_at
        for job in left[:MOST_AT_ONCE]:
            if self._launcher.is_closed:
                return
            self._looked_at.add(job.name)
            if self._tasks.is_busy(job.name):
                continue
            try:
                await self._look_at(job)
            except asyncio.CancelledError:
                raise
            except AllocationEnded as error:
                # The service ended while it gave the job's hosts back; the next pass requests others for a new pool.
                log.info("job %s: %s", job.name, error.message)
                await self._hub.apply(job.name, events.PoolEnded(reason=error.message))
            except EngineError as error:
                if error.retryable:
                    await self._tell(job, f"{error.message}.")
                else:
                    await self._launcher.fail(job, error)
            except Exception as error:  # boundary: one job's failure must not delay the others
                if isinstance(error, ClaryError) and error.retryable:
                    raise
                await self._launcher.fail(job, error)

    async def _look_at(self, job: TrainingJob) -> None:
        if why := self._admission.why_held_back(job):
            await self._tell(job, why)
            return
        if self._pools.is_coming(job):
            return
        holder = self._pools.find(job)
        try:
            mapping = self._admission.mapping(JobRequest(job.request))
        except WireError as error:  # nodes that left the cluster since the job was created may come back
            await self._tell(job, error.message)
            return
        pool = self._pools.pool_for(job, holder)
        if holder is None and not job.pool:
            job = await self._hub.apply(job.name, events.AllocationAsked(pool=pool))
            if job.pool != pool:
                return  # the job was stopped meanwhile
            if self._launcher.is_closed:
                return
        if holder is None:
            await self._queue.ask(self._order(job, pool, mapping))
        grant = await self._queue.grant(pool, len(mapping.hosts))
        if not grant.is_granted:
            await self._tell(job, grant.words)
            return
        place = Place(gpus=tuple(tuple(range(host.num_gpus)) for host in mapping.hosts))
        asked = await self._launcher.hosts_asked(job, place, mapping, pool=pool, holder=holder, grant=grant)
        await self._launcher.start(job, asked, holder)

    def _order(self, job: TrainingJob, pool: str, mapping: HostMapping) -> AllocationOrder:
        request = JobRequest(job.request)
        wishes = tuple(
            HostWish(
                index=host.index,
                kind=self._admission.kind_of(host.instance_type, mapping),
                num_cpus=int(host.resources.num_cpus),
                memory_bytes=host.resources.memory_bytes,
                num_gpus=host.num_gpus,
            )
            for host in mapping.hosts
        )
        keep_s = request.keep_alive_s
        limit_s = request.max_runtime_s + self._settings.stop_grace_s + self._settings.upload_timeout_s + keep_s
        return AllocationOrder(
            tag=pool,
            job_name=job.name,
            hosts=wishes,
            limit_s=int(limit_s) + MARGIN_S,
            grace_s=self._settings.stop_grace_s,
            is_spot=request.is_spot,
        )

    async def _tell(self, job: TrainingJob, words: str) -> None:
        latest = self._hub.waiting_jobs().get(job.name)
        if latest is not None and latest.pending_reason != words:
            await self._hub.apply(job.name, events.MustWait(reason=words))


def _keeps_its_hosts(job: TrainingJob) -> bool:
    """Whether a job whose attempt has failed will be retried at once, on its living hosts."""
    return attempts.will_be_retried(job) and not retries.decide(job).pause_s and not health.why_replaced(job)
