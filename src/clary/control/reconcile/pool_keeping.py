"""Warm pools as the reconciler sees them: which one a waiting job gets, which ones are due to end.

Where: the reconciler asks on its passes; the rules are `jobs.warm_pools`'.
"""

from __future__ import annotations

import secrets

from clary.contract.agent_protocol import HostPhase
from clary.contract.clock import Clock
from clary.contract.launch_plan import LaunchPlan
from clary.contract.plain import from_plain
from clary.control.engines.interface import Engine
from clary.control.jobs import events, health, warm_pools
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import AttemptEnd, TrainingJob
from clary.control.jobs.warm_pools import PoolDecision
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.pool_gateway import PoolGateway

GIVES_WAY = "its hosts were needed by a job that waited"
SERVICE_LEAVES = "the service was stopped"


class PoolKeeper:
    """Finds, watches and counts the pools that jobs hold."""

    def __init__(self, *, hub: JobHub, engine: Engine, gateway: PoolGateway, clock: Clock) -> None:
        self._hub = hub
        self._engine = engine
        self._gateway = gateway
        self._clock = clock

    async def settle(self) -> None:
        """Finish what a killed service began: a pool that a job has taken is not its last holder's any more."""
        jobs = self._hub.active_jobs()
        for holder in jobs:
            if not (holder.is_terminal and holder.pool):
                continue
            takers = [job for job in jobs if job.pool == holder.pool and job.name != holder.name]
            taker = next((job for job in takers if job.created_at > holder.created_at or not job.is_terminal), None)
            if taker is not None:
                await self._hub.apply(holder.name, events.PoolReused(by=taker.name))

    def pool_for(self, job: TrainingJob, holder: TrainingJob | None) -> str:
        """Return the pool on which a job is to run: its own, the one that `holder` left, a new one or none."""
        if job.pool:
            return job.pool
        if holder is not None:
            return holder.pool
        # What may be tried again keeps the hosts that live, though nobody else gets them in the end.
        is_kept = JobRequest(job.request).keep_alive_s > 0 or job.restart_rule.max_restarts > 0
        return f"pool_{secrets.token_hex(6)}" if is_kept else ""

    def find(self, job: TrainingJob) -> TrainingJob | None:
        """Return the job whose hosts wait and fit, the one that waits longest; None if there is none."""
        if job.pool:
            return None
        fitting = [other for other in self._parked() if warm_pools.matches(job, other)]
        return fitting[0] if fitting else None

    def is_coming(self, job: TrainingJob) -> bool:
        """Whether hosts that fit are just being put in order after another job."""
        return not job.pool and any(
            warm_pools.is_becoming_available(other) and warm_pools.matches(job, other)
            for other in self._hub.active_jobs()
        )

    def idle(self) -> TrainingJob | None:
        """Return the job whose hosts have waited longest, to give way to a job that needs them; None if none wait."""
        return next(iter(self._parked()), None)

    async def why_over(self, job: TrainingJob, *, is_draining: bool) -> str:
        """Return why a pool that waits has to end now; empty while it may stay."""
        if is_draining:
            return SERVICE_LEAVES
        reason = warm_pools.why_over(job, now=self._clock.now())
        return reason or await self._why_broken(job)

    async def decide(self, job: TrainingJob) -> PoolDecision:
        """Say whether the hosts of an attempt that is over stay: for the job's next attempt, or for another job."""
        if not job.pool or job.plan is None:
            return PoolDecision(stays=False, reason="there are no hosts to keep")
        if not job.is_terminal:
            is_restart = job.ending is not None and job.ending.kind is AttemptEnd.RESTARTED
            if not is_restart or job.end_cause is not None:
                return PoolDecision(stays=False, reason="the job gives its hosts back")
            if job.not_before is not None:
                return PoolDecision(stays=False, reason="the job pauses before it is tried again")
            if sick := health.why_replaced(job):
                return PoolDecision(stays=False, reason=sick)
            cut_off = await self._engine.cut_off(from_plain(LaunchPlan, job.plan))
            return PoolDecision(stays=not cut_off, reason="; ".join(cut_off.values()) or "the job is tried again")
        decision = warm_pools.stays_after_end(job)
        if not decision.stays:
            return decision
        if missing := [host for host in job.hosts if not self._gateway.is_done(job, host)]:
            return PoolDecision(stays=False, reason=f"{', '.join(missing)} did not come back from the job")
        broken = await self._why_broken(job)
        return PoolDecision(stays=not broken, reason=broken or decision.reason)

    def have_come_back(self, job: TrainingJob) -> bool:
        """Whether every host that is not lost is done with the job's current attempt."""
        return all(
            record.facts.phase is HostPhase.LOST or self._gateway.is_done(job, host)
            for host, record in job.hosts.items()
        )

    def has_come_back(self, job: TrainingJob, host: str) -> bool:
        """Whether one host is done with the job's current attempt."""
        return self._gateway.is_done(job, host)

    def announce(self, job: TrainingJob) -> None:
        """Let the agents of a job's pool see that it has an attempt to serve."""
        if job.pool:
            self._gateway.wake(job.pool)

    async def end(self, pool: str) -> None:
        """Take a pool's hosts back; raises EngineError."""
        self._gateway.forget(pool)
        await self._engine.release_pool(pool)

    def _parked(self) -> list[TrainingJob]:
        found = [job for job in self._hub.active_jobs() if warm_pools.is_parked(job)]
        return sorted(found, key=lambda job: job.modified_at)

    async def _why_broken(self, job: TrainingJob) -> str:
        plan = from_plain(LaunchPlan, job.plan)
        alive = await self._engine.agents_alive(plan)
        dead = [host for host, lives in alive.items() if not lives]
        if dead:
            return f"the agent of {', '.join(dead)} has ended"
        return "; ".join((await self._engine.cut_off(plan)).values())
