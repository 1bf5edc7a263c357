"""Choice of the pool for a waiting job, and of the pools that are due to end.

Where: the reconciler calls it on its passes; `jobs.warm_pools` contains the rules.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from clary.base.clock import Clock
from clary.base.plain import from_plain, to_plain
from clary.contract.launch_plan import LaunchPlan
from clary.contract.statuses import SecondaryStatus
from clary.control.engines.interface import Engine, HostState
from clary.control.jobs import events, health, warm_pools
from clary.control.jobs.training_job import AttemptEnd, TrainingJob
from clary.control.jobs.warm_pools import PoolDecision
from clary.control.reconcile.gateways.pool_gateway import PoolGateway
from clary.control.reconcile.hub import JobHub

log = logging.getLogger(__name__)

SILENT_S = 30.0  # silence after which a waiting host's agent counts as broken: three intervals of its requests
GIVES_WAY = "its hosts were needed by a job that waited"
SERVICE_LEAVES = "the service was stopped"


class PoolKeeper:
    """Chooses, checks and ends the pools that jobs hold."""

    def __init__(self, *, hub: JobHub, engine: Engine, gateway: PoolGateway, clock: Clock) -> None:
        self._hub = hub
        self._engine = engine
        self._gateway = gateway
        self._clock = clock

    async def settle(self) -> None:
        """Complete handovers that a killed service left half done: former holders of taken pools give them up."""
        for holder in self._hub.active_jobs():
            if holder.is_terminal and (taker := self.taker_of(holder)) is not None:
                await self._hub.apply(holder.name, events.PoolReused(by=taker.name))

    async def adopt(self, job: TrainingJob) -> TrainingJob:
        """Give a pool to a job whose attempt an older version of the service began.

        The agents and network of such an attempt are in the attempt's folder.

        The folder of the attempt becomes the pool's folder. The engine has no hosts under the pool's name: ending the
        pool has no effect, and releasing the attempt ends its hosts.
        """
        plan, pool = from_plain(LaunchPlan, job.plan), _new_pool()
        token = self._gateway.token_of(pool)
        plan = replace(plan, pool=pool, pool_token=token, pool_folder=plan.work_folder)
        return await self._hub.apply(job.name, events.PoolGiven(pool=pool, plan=to_plain(plan)))

    def taker_of(self, holder: TrainingJob) -> TrainingJob | None:
        """Return the job that has taken an ended job's pool, even if the ended job's record does not say so yet."""
        others = [job for job in self._hub.active_jobs() if job.pool == holder.pool and job.name != holder.name]
        return next((job for job in others if _order(job) > _order(holder)), None)

    def pool_for(self, job: TrainingJob, holder: TrainingJob | None) -> str:
        """Return the pool on which a job is to run: its own, the pool that `holder` left, or a new pool."""
        return job.pool or (holder.pool if holder is not None else _new_pool())

    def find(self, job: TrainingJob) -> TrainingJob | None:
        """Return the job with the fitting hosts that have waited longest; None for a job with a pool of its own."""
        if job.pool:
            return None
        fitting = [other for other in self._parked() if warm_pools.matches(job, other)]
        return fitting[0] if fitting else None

    def is_coming(self, job: TrainingJob) -> bool:
        """Whether another job is just leaving fitting hosts, which are now being made ready for their next job."""
        return warm_pools.coming_for(job, self._hub.active_jobs(), now_of=self._hub.now_of) is not None

    def idle(self) -> list[TrainingJob]:
        """Return the jobs whose hosts wait, the longest wait first."""
        return self._parked()

    async def why_over(self, job: TrainingJob, is_draining: bool) -> str:
        """Return the reason why a waiting pool has to end now; empty while it may stay."""
        if is_draining:
            return SERVICE_LEAVES
        reason = warm_pools.why_over(job, now=self._hub.now_of(job))
        return reason or await self._why_broken(job)

    async def decide(self, job: TrainingJob) -> PoolDecision:
        """Return whether the hosts of an ended attempt stay: for the job's next attempt, or for another job."""
        if job.plan is None:
            return PoolDecision(stays=False, reason="there are no hosts to keep")
        if not job.is_terminal:
            is_restart = job.ending is not None and job.ending.kind is AttemptEnd.RESTARTED
            if not is_restart or job.end_cause is not None:
                return PoolDecision(stays=False, reason="the job gives its hosts back")
            if job.not_before is not None:
                return PoolDecision(stays=False, reason="the job pauses before it is tried again")
            if sick := health.why_replaced(job):
                return PoolDecision(stays=False, reason=sick)
            cut_off = _cut_off(await self._engine.hosts(from_plain(LaunchPlan, job.plan)))
            reason = cut_off or "the job is tried again"
            return PoolDecision(stays=not cut_off, reason=reason)
        if not warm_pools.is_available(job):
            return PoolDecision(stays=False, reason="no other job may have its hosts")
        decision = warm_pools.stays_after_end(job)
        if not decision.stays:
            return decision
        if missing := [host for host in job.hosts if not self.has_come_back(job, host)]:
            return PoolDecision(stays=False, reason=f"{', '.join(missing)} did not come back from the job")
        broken = await self._why_broken(job)
        return PoolDecision(stays=not broken, reason=broken or decision.reason)

    def has_come_back(self, job: TrainingJob, host: str) -> bool:
        """Whether a host has finished the job's current attempt."""
        return self._gateway.is_done(job, host)

    def announce(self, job: TrainingJob) -> None:
        """Wake the agents of a job's pool to serve its attempt."""
        self._gateway.wake(job.pool)

    async def give_up(self, job: TrainingJob, reason: str) -> None:
        """End the warm pool of an ended job, so that no other job can take its hosts; the next pass ends the hosts."""
        log.info("job %s: its warm pool ends: %s", job.name, reason)
        await self._hub.apply(job.name, events.PoolEnded(reason=reason))

    async def end(self, pool: str) -> None:
        """End a pool's hosts; raises EngineError."""
        await self._engine.end(pool)
        self._gateway.forget(pool)

    def _parked(self) -> list[TrainingJob]:
        found = [job for job in self._hub.active_jobs() if warm_pools.is_parked(job) and self.taker_of(job) is None]
        return sorted(found, key=lambda job: (job.warm_pool and job.warm_pool.available_at) or job.created_at)

    async def _why_broken(self, job: TrainingJob) -> str:
        plan = from_plain(LaunchPlan, job.plan)
        hosts = await self._engine.hosts(plan)
        dead = [name for name, host in hosts.items() if not host.is_alive]
        if dead:
            return f"the agent of {', '.join(dead)} has ended"
        silent = [host for host in job.hosts if self._gateway.silent_s(job.pool, host) > SILENT_S]
        if silent:
            return f"the agent of {', '.join(silent)} has not asked for work for {SILENT_S:g} s"
        return _cut_off(hosts)


def _cut_off(hosts: Mapping[str, HostState]) -> str:
    """Return the reason why hosts are cut off; empty while all are connected."""
    return "; ".join(host.cut_off.why for host in hosts.values() if host.cut_off is not None)


def _new_pool() -> str:
    return f"pool_{secrets.token_hex(6)}"


def _order(job: TrainingJob) -> tuple[datetime, bool]:
    """Return the sort key of a pool's holders: the time when a job got its hosts, and whether it still runs."""
    began_at = [row.started_at for row in job.transitions if row.status is SecondaryStatus.STARTING]
    return max(began_at, default=job.created_at), not job.is_terminal
