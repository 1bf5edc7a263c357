"""Chooses the waiting jobs that get hosts, and makes the hosts.

Where: the reconciler calls this on every pass; `scheduling.placement` decides, `planning` makes the plan,
the engine creates the hosts in a task of the job's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import datetime
from typing import Protocol

from clary.base.clock import Clock
from clary.base.errors import ClaryError, EngineError, Fault, StoreError
from clary.base.plain import from_plain, to_plain
from clary.contract.launch_plan import LaunchPlan
from clary.contract.statuses import SecondaryStatus
from clary.control.engines.cluster.queue import Grant
from clary.control.engines.interface import Engine
from clary.control.jobs import deadlines, events, health
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile import host_losses
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.job_tasks import JobTasks
from clary.control.reconcile.planning import Site, build_plan
from clary.control.reconcile.pool_keeping import GIVES_WAY, PoolKeeper
from clary.control.scheduling.placement import HostMapping, Place, Refuse, Wait
from clary.control.store.errors import StreamNotFound

log = logging.getLogger(__name__)


MOST_TOLD = 200  # jobs that become Pending per pass; the next pass follows at once
BEHIND_OTHERS = "First come, first served: older jobs wait for hosts."


class LogStarts(Protocol):
    """The part of the log store that a launch uses."""

    async def create_stream(self, stream: str, created_at: datetime) -> None:
        """Create a stream unless it exists."""

    async def next_sequence(self, stream: str) -> int:
        """Return the number of the stream's next line. Raises: StreamNotFound."""

    async def take_up(self, stream: str) -> int:
        """Return the number of the next line of a stream to which another attempt will write."""


class Launcher:
    """Starts waiting jobs; knows which attempts this service has launched."""

    def __init__(
        self,
        *,
        hub: JobHub,
        engine: Engine,
        admission: Admission,
        gateway: AgentGateway,
        pools: PoolKeeper,
        logs: LogStarts,
        site: Site,
        clock: Clock,
        limits: deadlines.Limits,
        tasks: JobTasks,
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._admission = admission
        self._gateway = gateway
        self._pools = pools
        self._logs = logs
        self._site = site
        self._clock = clock
        self._limits = limits
        self._tasks = tasks
        self._launched: set[tuple[str, int]] = set()
        self.is_closed = False  # set when the service stops: no job starts, not even one whose start is being prepared
        self._starting = asyncio.Lock()  # held while a start is being stored

    async def start_waiting_jobs(self) -> None:
        """Start waiting jobs, those with hosts of their own first, then the oldest, until one has to wait.

        So no job overtakes another, except jobs that pause before a retry or wait for spot capacity: younger jobs pass
        them. Jobs that cannot start become Pending.
        """
        await self._start_while_there_is_room()
        await self._tell_who_waits()

    async def start(self, job: TrainingJob, asked: events.HostsAsked, holder: TrainingJob | None) -> None:
        """Begin a waiting job's next attempt, and create its hosts in the background.

        Nothing is launched unless the stored record has this very attempt: the job may have been stopped meanwhile. No
        job is started once the service stops.

        Args:
            job: the waiting job.
            asked: event returned by `hosts_asked`.
            holder: job whose pool it takes over, or None.
        """
        async with self._starting:
            if self.is_closed:
                return
            job = await self._hub.apply(job.name, asked)
            if holder is not None and job.pool == holder.pool:
                await self._hub.apply(holder.name, events.PoolReused(by=job.name))
            if job.plan == asked.plan and not job.is_terminal:
                self.begin(job)

    async def close(self) -> None:
        """Start no job from now on; return once a start that is being stored is over."""
        self.is_closed = True
        async with self._starting:
            return

    async def _start_while_there_is_room(self) -> None:
        # Find the first job again each time, because the queue may change while a job is started.
        while not self.is_closed and (job := self._first_waiting()) is not None:
            name = job.name
            try:
                if self._pools.is_coming(job):
                    return
                holder = self._pools.find(job)
                mapping = self._admission.mapping(JobRequest(job.request))
                decision = self._admission.decide_next(job, mapping, leaving=[] if holder is None else [holder])
                pool = self._pools.pool_for(job, holder)
                asked = None
                if isinstance(decision, Place):
                    asked = await self.hosts_asked(job, decision, mapping, pool=pool, holder=holder)
            except Exception as error:  # boundary: a job that cannot be planned must not block the queue
                if isinstance(error, StoreError) and error.retryable:
                    raise  # the log store has failed temporarily: the next pass retries
                await self.fail(job, error)
                continue
            if isinstance(decision, Wait):
                idle = self._pools.idle()
                if idle and isinstance(self._admission.decide_next(job, mapping, leaving=idle), Place):
                    await self._pools.give_up(idle[0], f"{GIVES_WAY} ({name})")
                    return
                if job.pending_reason != decision.reason:
                    await self._hub.apply(name, events.MustWait(reason=decision.reason))
                return
            if isinstance(decision, Refuse):
                await self._hub.apply(name, events.LaunchFailed(message=decision.reason, fault=Fault.CAPACITY))
            elif asked is not None:
                await self.start(job, asked, holder)

    async def _tell_who_waits(self) -> None:
        """Make jobs that wait behind others Pending: otherwise clients would see them as Starting, for hours.

        This is stored only once per job: the full reason with the job's place changes often, and is computed on
        request.
        """
        silent = [job for job in self._hub.waiting_jobs().values() if _has_said_nothing(job)][:MOST_TOLD]
        told = [events.MustWait(reason=self._admission.why_held_back(job) or BEHIND_OTHERS) for job in silent]
        # Concurrently, because the store batches concurrent writes into one transaction.
        await asyncio.gather(*(self._hub.apply(job.name, one) for job, one in zip(silent, told, strict=True)))

    def begin(self, job: TrainingJob) -> None:
        """Create the hosts that a job has requested, in the background; existing hosts stay."""
        self._tasks.begin(job, self._launch)

    async def heard_hosts(self, job: TrainingJob) -> frozenset[str]:
        """Return the hosts that get no second agent in the current attempt; see `host_losses.heard_hosts`."""
        ends = {}
        for stream in job.log_streams:
            with contextlib.suppress(StreamNotFound):  # the launch was interrupted before the stream was created
                ends[stream] = await self._logs.next_sequence(stream)
        return host_losses.heard_hosts(job, ends)

    def has_launched(self, job: TrainingJob) -> bool:
        """Whether this service, and not an earlier one, has launched the current attempt."""
        return (job.name, job.attempt) in self._launched

    def forget(self, job: TrainingJob) -> None:
        """Forget that this service has launched the current attempt, which has ended or could not be launched."""
        self._launched.discard((job.name, job.attempt))

    def _first_waiting(self) -> TrainingJob | None:
        # Jobs that have kept their hosts come first: they take no hosts from other jobs, and an older job may be
        # waiting for the hosts that they keep.
        waiting = sorted(self._hub.waiting_jobs().values(), key=lambda job: not job.pool)
        first = next((job for job in waiting if not self._admission.why_held_back(job)), None)
        # A job whose last attempt is still being released keeps its place.
        return None if first is None or self._tasks.is_busy(first.name) else first

    async def hosts_asked(
        self,
        job: TrainingJob,
        place: Place,
        mapping: HostMapping,
        *,
        pool: str,
        holder: TrainingJob | None,
        grant: Grant | None = None,
    ) -> events.HostsAsked:
        """Return the event that gives a waiting job its next attempt.

        Args:
            job: the waiting job.
            place: GPUs of its hosts.
            mapping: its hosts.
            pool: pool of the hosts.
            holder: job whose pool it takes over, or None.
            grant: grant of an engine with a queue; None without a queue.
        """
        request = JobRequest(job.request)
        environment = self._admission.environment(request.image)
        resources = mapping.resources(place.gpus)
        plan = build_plan(
            job,
            self._site,
            mapping=mapping,
            resources=resources,
            environment=environment,
            pool=pool,
            # A job with retries keeps its living hosts between attempts, even if no other job may use them afterwards.
            shares_hosts=holder is not None or request.keep_alive_s > 0 or job.restart_rule.max_restarts > 0,
            network_checked_for="" if holder is None else health.job_of_good_links(holder),
            notice_grace_s=0.0 if grant is None else grant.notice_grace_s,
        )
        epoch = int(self._clock.now().timestamp())
        # Clients list a job's streams once and follow them, so a later attempt writes to the same streams.
        streams = job.log_streams or tuple(f"{job.name}/{host.name}-{epoch}" for host in plan.hosts)
        return events.HostsAsked(
            plan=to_plain(plan),
            host_names=tuple(host.name for host in plan.hosts),
            log_streams=streams,
            log_bases={stream: await self._logs.take_up(stream) for stream in job.log_streams},
            pool=pool,
            left_by="" if holder is None else holder.name,
            granted="" if grant is None or holder is not None else grant.words,
        )

    async def _launch(self, job: TrainingJob) -> None:
        self._launched.add((job.name, job.attempt))
        try:
            await self._make_hosts(job)
        except Exception:
            self.forget(job)  # otherwise the next pass would report the missing agents as lost
            raise

    async def _make_hosts(self, job: TrainingJob) -> None:
        """Create streams, network and agents; each step is idempotent, so a restarted service can repeat it."""
        limit = asyncio.timeout(self._limits.launch_timeout_s)
        try:
            async with limit:
                plan = from_plain(LaunchPlan, job.plan)
                began_at = job.transitions[-1].started_at
                await asyncio.gather(*(self._logs.create_stream(stream, began_at) for stream in job.log_streams))
                plan = await self._engine.launch(plan)
                # This write fails if another service owns the database by now: no agents are started then.
                job = await self._hub.apply(job.name, events.NetworkReady(plan=to_plain(plan)))
                if job.is_terminal or job.attempt != plan.attempt:
                    return
                await self._engine.start_agents(plan, heard=host_losses.heard_hosts(job, log_ends={}))
            self._gateway.expect(job)
            self._pools.announce(job)
        except StoreError as error:
            if error.retryable:
                raise  # the database has failed temporarily: the next pass launches again
            await self.fail(job, error)
        except TimeoutError as error:
            if not limit.expired():
                await self.fail(job, error)
                return
            why = f"hosts were not ready within {self._limits.launch_timeout_s:g} s (setting launch_timeout_s)"
            await self.fail(job, EngineError(why))
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong, the job must say so and end
            await self.fail(job, error)

    async def fail(self, job: TrainingJob, error: Exception) -> None:
        """Fail a job whose launch is impossible, with the error's message."""
        if isinstance(error, ClaryError):
            message, fault = error.message, error.fault
            log.warning("job %s: hosts could not be granted: %s", job.name, message)
        else:
            message = f"hosts could not be launched: {type(error).__name__}: {error}; see the service's log"
            fault = Fault.INTERNAL
            log.error("job %s: hosts could not be launched", job.name, exc_info=error)
        await self._hub.apply(job.name, events.LaunchFailed(message=message, fault=fault))


def _has_said_nothing(job: TrainingJob) -> bool:
    """Whether clients see a waiting job as Starting."""
    return job.attempt == 0 and job.secondary_status is SecondaryStatus.STARTING
