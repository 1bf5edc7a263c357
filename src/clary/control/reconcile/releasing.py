"""Ends the hosts of an ended attempt, after fencing lost hosts.

Where: the reconciler calls this on every pass for jobs that have ended or are between two attempts. Agents get a short
time to leave by themselves. Then one task for the job releases all its hosts, and is repeated until it succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from clary.base.clock import Clock
from clary.base.errors import ClaryError
from clary.base.plain import from_plain
from clary.contract.agent_protocol import HostPhase
from clary.contract.launch_plan import LaunchPlan
from clary.control.engines.interface import Engine
from clary.control.jobs import events
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.job_tasks import JobTasks
from clary.control.reconcile.launching import Launcher
from clary.control.reconcile.log_salvage import LineStore, salvage_unsent_lines
from clary.control.reconcile.pool_keeping import SERVICE_LEAVES, PoolKeeper
from clary.control.store.errors import StreamNotFound

log = logging.getLogger(__name__)

# time for agents of an ended job to leave by themselves, longer than `stop_limits.RELEASE_LINES_S`
RELEASE_WAIT_S = 10.0
RETRY_RELEASE_S = 2.0  # pause after a failed release


class LogEnds(LineStore, Protocol):
    """The part of the log store that a release uses."""

    async def seal(self, stream: str) -> None:
        """Make every line of a stream durable."""


class Releaser:
    """Releases hosts; owns one task per host while the host is fenced."""

    def __init__(
        self,
        *,
        hub: JobHub,
        engine: Engine,
        gateway: AgentGateway,
        pools: PoolKeeper,
        logs: LogEnds,
        clock: Clock,
        launcher: Launcher,
        tasks: JobTasks,
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._gateway = gateway
        self._pools = pools
        self._logs = logs
        self._clock = clock
        self._launcher = launcher
        self._tasks = tasks
        self._fences: dict[str, asyncio.Task[None]] = {}  # job/attempt/host -> task that kills a lost host's agent
        self._replaced: set[str] = set()  # job/attempt/host of lost hosts whose replacements were requested
        self._release_at_s: dict[str, float] = {}  # ended job -> monotonic time at which its hosts are released
        self._retry_at_s: dict[str, float] = {}  # job -> monotonic time at which a failed release is retried
        self._told_lost: set[str] = set()  # log streams that say that lines of a lost machine are missing

    def open_tasks(self) -> list[asyncio.Task[None]]:
        """Return the running fence tasks."""
        return list(self._fences.values())

    def fence(self, job: TrainingJob, plan: LaunchPlan, host: str) -> None:
        """End all processes of a lost host; if that fails, the release retries it until it succeeds.

        Args:
            job: job of the host; one task at a time fences a host, and a replaced host is not fenced again.
            plan: plan of the current attempt.
            host: name of the host.
        """
        key = _key(job, host)
        if key in self._fences or key in self._replaced:
            return

        async def end_host() -> None:
            try:
                await self._engine.end_host(plan, host)
            except ClaryError as error:
                log.warning("job %s: %s could not be ended: %s", job.name, host, error.message)
            finally:
                del self._fences[key]

        self._fences[key] = asyncio.create_task(end_host(), name=f"job:{key}:fence")

    def is_fencing(self, job: TrainingJob) -> bool:
        """Whether a host of the attempt is being fenced."""
        return any(_key(job, host) in self._fences for host in job.hosts)

    def is_replaced(self, job: TrainingJob, host: str) -> bool:
        """Whether a replacement with the same number was requested for a lost host."""
        return _key(job, host) in self._replaced

    def note_replaced(self, job: TrainingJob, host: str) -> None:
        """Record that a lost host's replacement was requested; the new host has its number and must not be ended."""
        self._replaced.add(_key(job, host))

    async def release_when_left(self, job: TrainingJob) -> None:
        """Release the hosts of an ended attempt once its agents have left, or after `RELEASE_WAIT_S`."""
        now_s = self._clock.monotonic()
        if now_s < self._retry_at_s.get(job.name, now_s):
            return
        release_at_s = self._release_at_s.setdefault(job.name, now_s + RELEASE_WAIT_S)
        if now_s < release_at_s and job.plan is not None:
            hosts = await self._engine.hosts(from_plain(LaunchPlan, job.plan))
            # A lost host's agent obeys no orders, so the release does not wait for it.
            waits_for = [host for host, record in job.hosts.items() if record.facts.phase is not HostPhase.LOST]
            # An agent that stays with its pool reports that it has finished; other agents exit.
            if any(hosts[host].is_alive and not self._pools.has_come_back(job, host) for host in waits_for):
                return
        self._tasks.begin(job, self.release)

    async def release(self, job: TrainingJob) -> None:
        """Release the hosts of an attempt; after a failure, `release_when_left` retries after a pause."""
        try:
            await self._hub.require_lease()  # else the hosts may serve another job of the service that has the lease
            decision = await self._pools.decide(job)
            if decision.stays:
                await self._fence_lost(job)
            await salvage_unsent_lines(self._logs, job, self._clock, told=self._told_lost)
            await self._seal_logs(job)
            if job.pool and not decision.stays:  # otherwise the pool stays, or was ended while the job waited
                await self._pools.end(job.pool)
            await self._engine.end_attempt(job.name, job.attempt)
        except (ClaryError, OSError) as error:
            log.warning("job %s: release failed, trying again: %s", job.name, error)
            self._retry_at_s[job.name] = self._clock.monotonic() + RETRY_RELEASE_S
            return
        self._gateway.forget(job)
        self._release_at_s.pop(job.name, None)
        self._retry_at_s.pop(job.name, None)
        # The last step, because the job may be started again afterwards.
        await self._hub.apply(job.name, events.Released(keeps_pool=decision.stays))
        # Known until the release is stored: a repeated one must not end replacements, nor tell of lost lines again.
        self._launcher.forget(job)
        self._replaced.difference_update(_key(job, host) for host in job.hosts)
        self._told_lost.difference_update(job.log_streams)

    async def give_pools_back(self) -> None:
        """End the hosts that jobs keep while they wait for a retry; no job may start meanwhile.

        The record comes first. A service that is killed in between leaves hosts that no job owns, which the next
        service releases. In the other order it would leave a job that asks for hosts under the name of an ended pool.
        """
        for job in [job for job in self._hub.waiting_jobs().values() if job.pool]:
            try:
                await self._hub.apply(job.name, events.PoolEnded(reason=SERVICE_LEAVES))
                await self._pools.end(job.pool)
            except ClaryError as error:
                log.warning("job %s: its hosts are not released: %s", job.name, error.message)

    async def _fence_lost(self, job: TrainingJob) -> None:
        """End the processes on those hosts of a kept pool that are lost or have not finished the attempt.

        Otherwise these processes would run during another attempt.
        """
        plan = from_plain(LaunchPlan, job.plan)
        for host, record in job.hosts.items():
            is_lost = record.facts.phase is HostPhase.LOST
            if not self.is_replaced(job, host) and (is_lost or not self._pools.has_come_back(job, host)):
                await self._engine.end_host(plan, host)

    async def _seal_logs(self, job: TrainingJob) -> None:
        """Make the job's lines durable; a failure is only logged, so that the hosts can be released."""
        for stream in job.log_streams:
            try:
                await self._logs.seal(stream)
            except StreamNotFound:
                continue  # the launch failed before the stream was created
            except ClaryError as error:
                log.warning("job %s: %s is stored, but may not survive a power cut: %s", job.name, stream, error)


def _key(job: TrainingJob, host: str) -> str:
    return f"{job.name}/{job.attempt}/{host}"
