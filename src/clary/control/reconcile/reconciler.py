"""The loop that starts jobs that fit, ends jobs that are due, notices dead hosts and cleans up behind jobs.

Where: one task of the service. Every pass reads jobs from the hub, asks pure policies, and applies what they say; a
pass that fails for one job is logged and tried again, and never keeps the others from theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Protocol

from clary.contract.agent_protocol import HostPhase
from clary.contract.clock import Clock
from clary.contract.errors import ClaryError, EngineError, Fault, StoreError
from clary.contract.launch_plan import LaunchPlan
from clary.contract.plain import from_plain, to_plain
from clary.control.engines.interface import Engine
from clary.control.jobs import deadlines, events, health, warm_pools
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.agent_gateway import AgentGateway
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.log_salvage import LineStore, salvage_lost_hosts
from clary.control.reconcile.planning import Site, build_plan
from clary.control.reconcile.pool_keeping import GIVES_WAY, SERVICE_LEAVES, PoolKeeper
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.scheduling.placement import HostMapping, Place, Refuse, Wait
from clary.control.store.errors import StreamNotFound

log = logging.getLogger(__name__)

PASS_INTERVAL_S = 0.5  # between passes when nothing changes: deadlines and dead agents are seen this late
GATHER_S = 0.02  # between a change and the pass that looks at it
RELEASE_WAIT_S = 10.0  # for agents of an ended job to leave by themselves
RETRY_RELEASE_S = 2.0  # after a release that failed


class LogStreams(LineStore, Protocol):
    """What the reconciler needs of the log store."""

    async def create_stream(self, stream: str, created_at: datetime) -> None:
        """Create a stream; one that exists stays as it is."""

    async def seal(self, stream: str) -> None:
        """Make every line of a stream durable."""


class Reconciler:
    """Moves jobs; owns one task a job while it launches or releases."""

    def __init__(
        self,
        *,
        hub: JobHub,
        engine: Engine,
        admission: Admission,
        market: SpotMarket,
        gateway: AgentGateway,
        pools: PoolKeeper,
        logs: LogStreams,
        site: Site,
        clock: Clock,
        limits: deadlines.Limits,
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._admission = admission
        self._market = market
        self._gateway = gateway
        self._pools = pools
        self._logs = logs
        self._site = site
        self._clock = clock
        self._limits = limits
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._fences: dict[str, asyncio.Task[None]] = {}  # job/attempt/host -> the killing of a lost host's agent
        self._launched: set[tuple[str, int]] = set()  # attempts that this service has launched
        self._release_at_s: dict[str, float] = {}  # ended job -> monotonic time at which its hosts are taken back
        self._retry_at_s: dict[str, float] = {}  # the same for a release that failed
        self._waiting_checked_at_s: float | None = None
        self.is_draining = False  # set when the service leaves: nothing new starts

    async def run(self) -> None:
        """Make passes until cancelled."""
        listening = asyncio.create_task(self._gateway.keep_listening(), name="gateway:listening")
        try:
            while True:
                await self.make_pass()
                await self._hub.wait_for_change(PASS_INTERVAL_S)
                # While requests pour in, one pass looks at many changes; no order to an agent waits for a pass.
                await asyncio.sleep(GATHER_S)
        finally:
            tasks = [listening, *self._tasks.values(), *self._fences.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def make_pass(self) -> None:
        """Look at every job once."""
        try:
            await self._hub.settle_doubts()
            await self._pools.settle()
            await self._look_at_waiting_jobs()
            await self._reclaim_spot_capacity()
            if not self.is_draining:
                await self._start_waiting_jobs()
        except Exception:  # boundary: the loop lives on, and running jobs are looked after
            log.exception("waiting jobs: this pass failed; the next one tries again")
        for name in [job.name for job in self._hub.active_jobs()]:
            # Read anew: while others were looked at, the job may have been released, deleted and created again.
            job = self._hub.live_job(name)
            if job is None or job.is_released or name in self._tasks:
                continue
            try:
                await self._follow(job)
            except Exception:  # boundary: one job's failure must not keep the others from theirs
                log.exception("job %s: this pass failed; the next one tries again", name)

    async def _look_at_waiting_jobs(self) -> None:
        """End jobs that have waited too long, and say what others are held back for, wherever they are in the queue."""
        now_s = self._clock.monotonic()
        if self._waiting_checked_at_s is not None and now_s - self._waiting_checked_at_s < PASS_INTERVAL_S:
            return  # passes follow each other without a pause while jobs come in, and the queue may be long
        self._waiting_checked_at_s = now_s
        for job in list(self._hub.waiting_jobs().values()):
            due = None
            if deadlines.can_expire_waiting(job):
                due = deadlines.due(job, now=self._clock.now(), limits=self._limits, silent_s={})
            if due is not None:
                await self._hub.apply(job.name, due)
            elif (reason := self._market.why_wait(job)) and reason != job.pending_reason:
                await self._hub.apply(job.name, events.MustWait(reason=reason))

    async def _reclaim_spot_capacity(self) -> None:
        """End attempts whose capacity is no longer there."""
        found = self._market.reclaimed()
        for name in found.job_names:
            log.info("job %s: %s", name, found.reason)
            reclaimed = events.Reclaimed(reason=found.reason, grace_s=self._limits.stop_grace_s)
            await self._hub.apply(name, reclaimed)

    async def _start_waiting_jobs(self) -> None:
        """Start the oldest waiting job, and the next, until one has to wait: nobody overtakes.

        But jobs that pause before they are tried again, or wait for spot capacity, let others go first.
        """
        # The first is looked up anew each time: the queue may be long, and change while a job is started.
        while (job := self._first_waiting()) is not None:
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
                    asked = await self._hosts_asked(job, decision, mapping, pool=pool, holder=holder)
            except Exception as error:  # boundary: a job that cannot be planned must not block the queue
                if isinstance(error, StoreError) and error.retryable:
                    raise  # the log store fails for a moment: the next pass asks again
                await self._fail_launch(job, error)
                continue
            if isinstance(decision, Wait):
                idle = self._pools.idle()
                if idle and isinstance(self._admission.decide_next(job, mapping, leaving=idle), Place):
                    await self._end_pool(idle[0], f"{GIVES_WAY} ({name})")
                    return
                if job.pending_reason != decision.reason:
                    await self._hub.apply(name, events.MustWait(reason=decision.reason))
                return
            if isinstance(decision, Refuse):
                await self._hub.apply(name, events.LaunchFailed(message=decision.reason, fault=Fault.CAPACITY))
            elif asked is not None:
                job = await self._hub.apply(name, asked)
                if holder is not None and job.pool == holder.pool:
                    await self._hub.apply(holder.name, events.PoolReused(by=name))
                if not job.is_terminal:
                    self._in_background(job, self._launch)

    def _first_waiting(self) -> TrainingJob | None:
        # One that has kept its hosts takes none from others, and one that is older may wait for just these.
        waiting = sorted(self._hub.waiting_jobs().values(), key=lambda job: not job.pool)
        first = next((job for job in waiting if not self._admission.why_held_back(job)), None)
        # One whose last attempt is still being put away keeps its place.
        return None if first is None or first.name in self._tasks else first

    async def _hosts_asked(
        self, job: TrainingJob, place: Place, mapping: HostMapping, *, pool: str, holder: TrainingJob | None
    ) -> events.HostsAsked:
        environment = self._admission.environment(JobRequest(job.request).image)
        resources = mapping.resources(place.gpus)
        plan = build_plan(
            job,
            self._site,
            mapping=mapping,
            resources=resources,
            environment=environment,
            pool=pool,
            network_checked_for="" if holder is None else health.job_of_good_links(holder),
        )
        epoch = int(self._clock.now().timestamp())
        # Clients list a job's streams once and follow those: a later attempt goes on in the same ones.
        streams = job.log_streams or tuple(f"{job.name}/{host.name}-{epoch}" for host in plan.hosts)
        return events.HostsAsked(
            plan=to_plain(plan),
            host_names=tuple(host.name for host in plan.hosts),
            log_streams=streams,
            log_bases={stream: await self._num_lines(stream) for stream in job.log_streams},
            pool=pool,
            left_by="" if holder is None else holder.name,
        )

    async def _num_lines(self, stream: str) -> int:
        try:
            return await self._logs.next_sequence(stream)
        except StreamNotFound:
            return 0  # the launch of the attempt before failed early

    async def _launch(self, job: TrainingJob) -> None:
        """Create streams, network and agents; every step may be repeated after a crash of the service."""
        self._launched.add((job.name, job.attempt))
        limit = asyncio.timeout(self._limits.launch_timeout_s)
        try:
            async with limit:
                plan = from_plain(LaunchPlan, job.plan)
                for stream in job.log_streams:
                    await self._logs.create_stream(stream, job.transitions[-1].started_at)
                plan = await self._engine.launch(plan)
                job = await self._hub.apply(job.name, events.NetworkReady(plan=to_plain(plan)))
                await self._engine.start_agents(plan)
            self._gateway.expect(job)
            self._pools.announce(job)
        except StoreError as error:
            if error.retryable:
                raise  # a database that fails for a moment says nothing about hosts: the next pass launches again
            await self._fail_launch(job, error)
        except TimeoutError as error:
            if not limit.expired():
                await self._fail_launch(job, error)
                return
            why = f"hosts were not ready within {self._limits.launch_timeout_s:g} s (setting launch_timeout_s)"
            await self._fail_launch(job, EngineError(why))
        except Exception as error:  # noqa: BLE001 - boundary: whatever went wrong, the job must say so and end
            await self._fail_launch(job, error)

    async def _fail_launch(self, job: TrainingJob, error: Exception) -> None:
        if isinstance(error, ClaryError):
            message, fault = error.message, error.fault
            log.warning("job %s: hosts could not be had: %s", job.name, message)
        else:
            message = f"hosts could not be launched: {type(error).__name__}: {error}; see the service's log"
            fault = Fault.INTERNAL
            log.error("job %s: hosts could not be launched", job.name, exc_info=error)
        await self._hub.apply(job.name, events.LaunchFailed(message=message, fault=fault))

    async def _follow(self, job: TrainingJob) -> None:
        if warm_pools.is_parked(job):
            if self._pools.taker_of(job) is None and (reason := await self._pools.why_over(job, self.is_draining)):
                await self._end_pool(job, reason)
            return
        if job.is_terminal or job.is_leaving:
            await self._release_when_left(job)
            return
        plan = from_plain(LaunchPlan, job.plan)
        alive = await self._engine.agents_alive(plan)
        cut_off = await self._engine.cut_off(plan)
        if (job.name, job.attempt) not in self._launched and _may_lack_agents(job, alive):
            # Asked for by a service that ended before it could start the agents.
            if job.end_cause is None and job.ending is None:
                self._in_background(job, self._launch)
                return
            if _is_unheard(job):
                why = "the job was told to stop before its hosts were launched"
                await self._hub.apply(job.name, events.LaunchFailed(message=why, fault=Fault.INFRASTRUCTURE))
                return
        # Read anew: an agent that is gone by now may have said why before it went.
        latest = self._hub.live_job(job.name)
        if latest is None or latest.is_terminal or latest.is_leaving:
            return
        job = latest
        for event in (*self._dead_agents(job, alive), *self._cut_off_hosts(job, cut_off)):
            log.warning("job %s: %s", job.name, event.why)
            job = await self._hub.apply(job.name, event)
        silent_s = self._gateway.silent_s(job)
        due = deadlines.due(job, now=self._clock.now(), limits=self._limits, silent_s=silent_s)
        if due is not None:
            job = await self._hub.apply(job.name, due)
        for host, record in job.hosts.items():
            if record.facts.phase is HostPhase.LOST and alive.get(host, False):
                self._fence(job, plan, host)

    def _fence(self, job: TrainingJob, plan: LaunchPlan, host: str) -> None:
        """End what still runs on a lost host; a failure is left to the release, which tries again until it is done."""
        key = f"{job.name}/{job.attempt}/{host}"
        if key in self._fences:
            return

        async def end_host() -> None:
            try:
                await self._engine.fence(plan, host)
            except ClaryError as error:
                log.warning("job %s: %s could not be ended: %s", job.name, host, error.message)
            finally:
                del self._fences[key]

        self._fences[key] = asyncio.create_task(end_host(), name=f"job:{key}:fence")

    def _dead_agents(self, job: TrainingJob, alive: Mapping[str, bool]) -> list[events.HostLost]:
        return [
            events.HostLost(
                host=name, why=f"{name} was lost: its agent ended in phase {record.facts.phase.value} without leave"
            )
            for name, record in job.hosts.items()
            if record.facts.phase not in (HostPhase.LOST, HostPhase.RELEASED) and not alive.get(name, False)
        ]

    def _cut_off_hosts(self, job: TrainingJob, cut_off: Mapping[str, str]) -> list[events.HostLost]:
        """A host that its gang cannot reach is lost to it while a program runs; later it may still hand in results."""
        return [
            events.HostLost(host=name, why=f"{name} was lost: {why}")
            for name, why in cut_off.items()
            if name in job.hosts and job.hosts[name].facts.phase is HostPhase.RUNNING
        ]

    async def _release_when_left(self, job: TrainingJob) -> None:
        now_s = self._clock.monotonic()
        if now_s < self._retry_at_s.get(job.name, now_s):
            return
        release_at_s = self._release_at_s.setdefault(job.name, now_s + RELEASE_WAIT_S)
        if now_s < release_at_s and job.pool:
            if not self._pools.have_come_back(job):
                return
        elif now_s < release_at_s:
            alive = await self._engine.agents_alive(from_plain(LaunchPlan, job.plan))
            # A lost host's agent obeys nobody; what still runs there must not outlive the job by this wait.
            if any(alive[name] for name, record in job.hosts.items() if record.facts.phase is not HostPhase.LOST):
                return
        self._in_background(job, self._release)

    async def _release(self, job: TrainingJob) -> None:
        try:
            if job.pool:
                await self._fence_lost(job)
            await salvage_lost_hosts(self._logs, job, self._clock)
            await self._seal_logs(job)
            decision = await self._pools.decide(job)
            if job.pool and not decision.stays:
                await self._pools.end(job.pool)
            await self._engine.release(job.name, job.attempt)
        except ClaryError as error:
            log.warning("job %s: release failed, trying again: %s", job.name, error.message)
            self._retry_at_s[job.name] = self._clock.monotonic() + RETRY_RELEASE_S
            return
        self._gateway.forget(job)
        self._launched.discard((job.name, job.attempt))
        self._release_at_s.pop(job.name, None)
        self._retry_at_s.pop(job.name, None)
        # Last: the job may be started again from here on.
        await self._hub.apply(job.name, events.Released(keeps_pool=decision.stays))

    async def _fence_lost(self, job: TrainingJob) -> None:
        """End what lives on the lost hosts of a pool, which would go on there for another attempt."""
        if job.plan is None:
            return
        plan = from_plain(LaunchPlan, job.plan)
        for host, record in job.hosts.items():
            if record.facts.phase is HostPhase.LOST or not self._pools.has_come_back(job, host):
                await self._engine.fence(plan, host)

    async def _end_pool(self, job: TrainingJob, reason: str) -> None:
        """Let nobody have the hosts that wait after an ended job any more; the next pass takes them back."""
        log.info("job %s: its warm pool ends: %s", job.name, reason)
        await self._hub.apply(job.name, events.PoolEnded(reason=reason))

    async def give_pools_back(self) -> None:
        """Take back the hosts of jobs that wait with them to be tried again; nobody may make passes meanwhile."""
        for job in [job for job in self._hub.waiting_jobs().values() if job.pool]:
            try:
                await self._pools.end(job.pool)
                await self._hub.apply(job.name, events.PoolEnded(reason=SERVICE_LEAVES))
            except ClaryError as error:
                log.warning("job %s: its hosts are not released: %s", job.name, error.message)

    async def _seal_logs(self, job: TrainingJob) -> None:
        """Make the job's lines durable; hosts are taken back even where that fails, or they would never be."""
        for stream in job.log_streams:
            try:
                await self._logs.seal(stream)
            except StreamNotFound:
                continue  # the launch failed before it was created
            except ClaryError as error:
                log.warning("job %s: %s is stored, but may not survive a power cut: %s", job.name, stream, error)

    def _in_background(self, job: TrainingJob, work: Callable[[TrainingJob], Coroutine[None, None, None]]) -> None:
        name = job.name

        async def guarded() -> None:
            try:
                await work(job)
            except Exception:  # boundary: as in make_pass, for the work of one job that takes longer than a pass
                log.exception("job %s: background work failed; the next pass tries again", name)
                self._launched.discard((name, job.attempt))  # or the next pass would look for agents, and miss them
            finally:
                self._tasks.pop(name, None)

        self._tasks[name] = asyncio.create_task(guarded(), name=f"job:{name}")


def _may_lack_agents(job: TrainingJob, alive: Mapping[str, bool]) -> bool:
    """Whether a launch may have been cut short: those agents of a pool that live go on by themselves, and say so."""
    if job.pool:
        return any(record.report_number == 0 for record in job.hosts.values())
    return _is_unheard(job) and not any(alive.values())


def _is_unheard(job: TrainingJob) -> bool:
    return all(record.report_number == 0 for record in job.hosts.values())
