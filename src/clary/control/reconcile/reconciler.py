"""The loop that starts jobs that fit, ends jobs that are due, detects dead hosts and cleans up after jobs.

Where: one task of the service. Every pass reads jobs from the hub, calls pure policies, and applies their decisions. A
failure in one job is logged, retried in the next pass, and does not affect other jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from clary.base.clock import Clock
from clary.base.errors import Fault
from clary.base.plain import from_plain
from clary.contract.agent_protocol import HostPhase
from clary.contract.launch_plan import LaunchPlan
from clary.control.background_tasks import FailureLog, keep_running
from clary.control.engines.cluster.queue import Queue
from clary.control.engines.interface import Engine, HostState
from clary.control.jobs import deadlines, events, notices, retries, warm_pools
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile import host_losses
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.granting import Granter
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.job_tasks import JobTasks
from clary.control.reconcile.launching import Launcher, LogStarts
from clary.control.reconcile.node_admission import NodeAdmission
from clary.control.reconcile.planning import Site
from clary.control.reconcile.pool_keeping import PoolKeeper
from clary.control.reconcile.releasing import LogEnds, Releaser
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.store.errors import StaleLease

log = logging.getLogger(__name__)

PASS_INTERVAL_S = 0.5  # between passes without a change: the longest delay until deadlines and dead agents are noticed
IDLE_INTERVAL_S = 10.0  # between passes while no job waits or has hosts; a change ends the wait
REASON_WAIT_S = 3.0  # from a signal of the engine to the release of its hosts, while the engine's reason is unknown
GATHER_S = 0.02  # least time between the end of a pass and the next one


class LogStreams(LogStarts, LogEnds, Protocol):
    """The methods of the log store that are needed to launch and to release hosts."""


class Reconciler:
    """Moves jobs through their life cycle, pass by pass."""

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
        queue: Queue | None = None,
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._market = market
        self._gateway = gateway
        self._pools = pools
        self._clock = clock
        self._limits = limits
        self._failures = FailureLog(log)
        self._tasks = JobTasks()
        self.launcher = Launcher(
            hub=hub,
            engine=engine,
            admission=admission,
            gateway=gateway,
            pools=pools,
            logs=logs,
            site=site,
            clock=clock,
            limits=limits,
            tasks=self._tasks,
        )
        self.releaser = Releaser(
            hub=hub,
            engine=engine,
            gateway=gateway,
            pools=pools,
            logs=logs,
            clock=clock,
            launcher=self.launcher,
            tasks=self._tasks,
        )
        self._granter: Granter | None = None
        if queue is not None:
            assert isinstance(admission, NodeAdmission), "an engine with a queue has nodes"
            self._granter = Granter(
                hub=hub,
                queue=queue,
                admission=admission,
                pools=pools,
                launcher=self.launcher,
                tasks=self._tasks,
                settings=site.settings,
                clock=clock,
            )
        # job, for active jobs -> the plan in plain form, and the parsed plan
        self._plans: dict[str, tuple[Any, LaunchPlan]] = {}
        self._waiting_checked_at_s: float | None = None

    @property
    def is_draining(self) -> bool:
        """Whether the service stops and no job starts."""
        return self.launcher.is_closed

    @is_draining.setter
    def is_draining(self, value: bool) -> None:
        self.launcher.is_closed = value

    async def run(self) -> None:
        """Make passes until cancelled."""
        listening = keep_running("gateway:listening", self._gateway.keep_listening)
        try:
            while True:
                await self.make_pass()
                ended_s = self._clock.monotonic()
                await self._hub.wait_for_change(PASS_INTERVAL_S if self._has_work() else IDLE_INTERVAL_S)
                # A change after a pause is handled at once. Under load one pass handles many changes; orders to agents
                # do not wait for a pass.
                await asyncio.sleep(max(0.0, GATHER_S - (self._clock.monotonic() - ended_s)))
        finally:
            tasks = [listening, *self._tasks.open_tasks(), *self.releaser.open_tasks()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _has_work(self) -> bool:
        """Whether a pass may have work without a change of a job: a deadline, a dead agent, hosts to be released."""
        return bool(self._hub.waiting_jobs() or self._hub.active_jobs() or self._tasks.open_tasks())

    async def make_pass(self) -> None:
        """Handle every job once."""
        try:
            await self._hub.settle_doubts()
            await self._pools.settle()
            await self._look_at_waiting_jobs()
            await self._reclaim_spot_capacity()
            if not self.is_draining:
                await (self._granter or self.launcher).start_waiting_jobs()
        except StaleLease:
            return  # the service leaves, and has said so
        except Exception as error:  # noqa: BLE001 - boundary: running jobs are still handled in this pass
            self._failures.tell("waiting jobs: this pass failed; the next one tries again", error)
        names = dict.fromkeys(job.name for job in self._hub.active_jobs())
        self._plans = {name: plan for name, plan in self._plans.items() if name in names}
        for name in names:
            # Reload: the job may meanwhile have been released, deleted and created again.
            job = self._hub.live_job(name)
            if job is None or job.is_released or self._tasks.is_busy(name):
                continue
            try:
                await self._follow(job)
            except StaleLease:
                return
            except Exception as error:  # noqa: BLE001 - boundary: one job's failure must not affect the other jobs
                self._failures.tell(f"job {name}: this pass failed; the next one tries again", error)

    async def drain(self) -> None:
        """Start no job from now on; return once no start is being stored any more."""
        await self.launcher.close()

    async def give_pools_back(self) -> None:
        """End the hosts that jobs keep while they wait for a retry; no job may start meanwhile."""
        await self.releaser.give_pools_back()

    async def _look_at_waiting_jobs(self) -> None:
        """End waiting jobs that are past a limit; record for all others why they wait for spot capacity, if they do."""
        now_s = self._clock.monotonic()
        if self._waiting_checked_at_s is not None and now_s - self._waiting_checked_at_s < PASS_INTERVAL_S:
            return  # under load passes follow each other closely, and the queue may be long
        self._waiting_checked_at_s = now_s
        for job in list(self._hub.waiting_jobs().values()):
            due = None
            if deadlines.can_expire_waiting(job):
                due = deadlines.due(job, now=self._hub.now_of(job), limits=self._limits, silent_s={})
            if due is not None:
                await self._hub.apply(job.name, due)
            elif (reason := self._market.why_wait(job)) and reason != job.pending_reason:
                await self._hub.apply(job.name, events.MustWait(reason=reason))

    async def _reclaim_spot_capacity(self) -> None:
        """End attempts whose spot capacity is reclaimed."""
        found = self._market.reclaimed()
        for name in found.job_names:
            log.info("job %s: %s", name, found.reason)
            reclaimed = events.Reclaimed(reason=found.reason, grace_s=self._limits.stop_grace_s)
            await self._hub.apply(name, reclaimed)

    async def _follow(self, job: TrainingJob) -> None:
        """Check the hosts of one job: record losses, apply due deadlines, launch, fence or release where needed."""
        if not job.pool and job.plan is not None:
            job = await self._pools.adopt(job)
        if warm_pools.is_parked(job):
            if self._pools.taker_of(job) is None and (reason := await self._pools.why_over(job, self.is_draining)):
                await self._pools.give_up(job, reason)
            return
        if job.is_terminal or job.is_leaving:
            if not await self._awaits_reason(job):
                await self.releaser.release_when_left(job)
            return
        plan = self._plan_of(job)
        hosts = await self._engine.hosts(plan)
        job = await self._explain(job, hosts)
        alive = {name: host.is_alive for name, host in hosts.items()}
        cut_off = {name: host.cut_off for name, host in hosts.items() if host.cut_off is not None}
        if not self.launcher.has_launched(job) and host_losses.may_lack_agents(job):
            # An earlier service recorded the attempt and may have ended before it started the agents.
            is_ending = job.end_cause is not None or job.ending is not None
            if not is_ending and host_losses.can_repeat_launch(await self.launcher.heard_hosts(job), alive):
                self.launcher.begin(job)
                return
            if is_ending and host_losses.is_unheard(job):
                why = "the job was told to stop before its hosts were launched"
                await self._hub.apply(job.name, events.LaunchFailed(message=why, fault=Fault.INFRASTRUCTURE))
                return
        # Reload: an agent that has ended meanwhile may have reported the reason before it ended.
        latest = self._hub.live_job(job.name)
        if latest is None or latest.is_terminal or latest.is_leaving:
            return
        job = latest
        signs = host_losses.last_signs(job, self._gateway.last_signs(job))
        before = self._clock.now() - timedelta(seconds=deadlines.evidence_wait_s(job, self._limits))
        reclaimed = self._reclaimed_by_engine(job, hosts)
        if reclaimed is not None:
            log.info("job %s: %s", job.name, reclaimed.reason)
            job = await self._hub.apply(job.name, reclaimed)
        words = {name: host.why_dead for name, host in hosts.items() if host.why_dead}
        lost_at = self._lost_at(job, hosts)
        dead = host_losses.dead_agents(job, alive, signs=signs, words=words)
        for event in (*dead, *host_losses.cut_off_hosts(job, cut_off, before=before)):
            log.warning("job %s: %s", job.name, event.why)
            job = await self._hub.apply(job.name, event, at=lost_at)
        silent_s = self._gateway.silent_s(job)
        now = self._hub.now_of(job)
        due = deadlines.due(
            job,
            now=now,
            limits=self._limits,
            silent_s=silent_s,
            last_signs=signs,
            served_s=self._gateway.served_s,
        )
        if isinstance(due, events.NoMoreEvidence):
            log.info("job %s: %s; nothing was noticed in time", job.name, retries.why_wait(job))
        if due is not None:
            job = await self._hub.apply(job.name, due)
        lost = [host for host, record in job.hosts.items() if record.facts.phase is HostPhase.LOST]
        for host in lost:
            if alive.get(host, False):
                self.releaser.fence(job, plan, host)
        await self._replace_lost(job, [host for host in lost if not alive.get(host, False)])

    def _lost_at(self, job: TrainingJob, hosts: Mapping[str, HostState]) -> datetime | None:
        """Return when the hosts of this machine ended if that was before this service began; None for a later end.

        They ended with the machine's last boot, or with an earlier service, as in a container that is started again.
        The time in which nothing ran is no training.
        """
        if self._granter is not None:
            return None
        if (cut_short_at := self._hub.cut_short_at(job)) is not None:
            return cut_short_at
        left_at = self._hub.left_at(job)
        is_known = self.launcher.has_launched(job) or bool(self._gateway.last_signs(job))
        if left_at is None or is_known or any(host.is_alive for host in hosts.values()):
            return None
        signs = [host.last_sign_at for host in hosts.values() if host.last_sign_at is not None]
        return min(max([left_at, *signs]), self._hub.now_of(job))

    def _plan_of(self, job: TrainingJob) -> LaunchPlan:
        """Return the plan of an attempt; it is read once, since passes are frequent and a plan names all hosts."""
        known = self._plans.get(job.name)
        if known is None or known[0] is not job.plan:
            known = self._plans[job.name] = job.plan, from_plain(LaunchPlan, job.plan)
        return known[1]

    async def _replace_lost(self, job: TrainingJob, ended: list[str]) -> None:
        """Request replacements for lost hosts that have ended, while the other hosts are still stopping."""
        wanted = [host for host in ended if not self.releaser.is_replaced(job, host)]
        if self._granter is None or not wanted or self.releaser.is_fencing(job):
            return
        if await self._granter.ask_for_lost(job):
            for host in wanted:
                self.releaser.note_replaced(job, host)

    async def _awaits_reason(self, job: TrainingJob) -> bool:
        """Whether an attempt that an engine's signal has ended waits a moment for the engine's reason."""
        if self._granter is None or job.is_terminal or job.ending is None or not job.ending.is_by_signal:
            return False
        job = await self._explain(job, await self._engine.hosts(self._plan_of(job)))
        if job.ending is None or not job.ending.is_by_signal:
            return False
        return self._hub.now_of(job) - job.ending.asked_at < timedelta(seconds=REASON_WAIT_S)

    async def _explain(self, job: TrainingJob, hosts: Mapping[str, HostState]) -> TrainingJob:
        """Record the engine's reason for the end of an attempt of which only an agent's signal is known so far."""
        if job.ending is None or not job.ending.is_by_signal:
            return job
        for name, host in hosts.items():
            if host.capacity_ends is not None:
                reason = notices.reason_of(name, host.capacity_ends.why)
                log.info("job %s: %s", job.name, reason)
                return await self._hub.apply(job.name, events.ReclaimExplained(reason=reason))
        return job

    def _reclaimed_by_engine(self, job: TrainingJob, hosts: Mapping[str, HostState]) -> events.Reclaimed | None:
        """Return the event that ends an attempt whose capacity the engine reclaims; None without such a notice."""
        if job.end_cause is not None or job.ending is not None:
            return None
        for name, host in hosts.items():
            if (notice := host.capacity_ends) is None:
                continue
            left_s = None
            if notice.ends_at is not None:
                left_s = max(0.0, (notice.ends_at - self._clock.now()).total_seconds())
            return notices.reclaimed(name, notice.why, grace_left_s=left_s, stop_grace_s=self._limits.stop_grace_s)
        return None
