"""The loop that starts jobs that fit, ends jobs that are due, notices dead hosts and cleans up behind jobs.

Where: one task of the service. Every pass reads jobs from the hub, asks pure policies, and applies what they say; a
pass that fails for one job is logged and tried again, and never keeps the others from theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from datetime import datetime
from typing import Protocol

from clary.contract.agent_protocol import HostPhase
from clary.contract.clock import Clock
from clary.contract.errors import ClaryError, Fault
from clary.contract.launch_plan import LaunchPlan
from clary.contract.plain import from_plain, to_plain
from clary.control.engines.interface import Engine
from clary.control.jobs import deadlines, events
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.agent_gateway import AgentGateway
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.planning import Site, build_plan
from clary.control.scheduling.placement import Place, Refuse, Wait

log = logging.getLogger(__name__)

PASS_INTERVAL_S = 0.5  # between passes when nothing changes: deadlines and dead agents are seen this late
RELEASE_WAIT_S = 10.0  # for agents of an ended job to leave by themselves
RETRY_RELEASE_S = 2.0  # after a release that failed


class LogStreams(Protocol):
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
        gateway: AgentGateway,
        logs: LogStreams,
        site: Site,
        clock: Clock,
        limits: deadlines.Limits,
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._admission = admission
        self._gateway = gateway
        self._logs = logs
        self._site = site
        self._clock = clock
        self._limits = limits
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._launched: set[tuple[str, int]] = set()  # attempts that this service has launched
        self._ended_at: dict[str, float] = {}
        self.is_draining = False  # set when the service leaves: nothing new starts

    async def run(self) -> None:
        """Make passes until cancelled."""
        try:
            while True:
                await self.make_pass()
                await self._hub.wait_for_change(PASS_INTERVAL_S)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def make_pass(self) -> None:
        """Look at every job once."""
        if not self.is_draining:
            await self._start_waiting_jobs()
        for job in self._hub.active_jobs():
            if job.name in self._tasks:
                continue
            try:
                await self._follow(job)
            except Exception:  # boundary: one job's failure must not keep the others from theirs
                log.exception("job %s: this pass failed; the next one tries again", job.name)

    async def _start_waiting_jobs(self) -> None:
        """Start the oldest waiting job, and the next, until one has to wait: nobody overtakes."""
        for job in list(self._hub.waiting_jobs().values())[: self._site.settings.max_hosts or None]:
            due = deadlines.due(job, now=self._clock.now(), limits=self._limits, last_heard={})
            if due is not None:
                await self._hub.apply(job.name, due)
                continue
            mapping = self._admission.mapping(JobRequest(job.request))
            decision = self._admission.decide_next(job, mapping)
            if isinstance(decision, Wait):
                await self._hub.apply(job.name, events.MustWait(reason=decision.reason))
                return
            if isinstance(decision, Refuse):
                await self._hub.apply(job.name, events.LaunchFailed(message=decision.reason, fault=Fault.CAPACITY))
                continue
            await self._ask_for_hosts(job, decision)

    async def _ask_for_hosts(self, job: TrainingJob, place: Place) -> None:
        try:
            mapping = self._admission.mapping(JobRequest(job.request))
            environment = self._admission.environment(JobRequest(job.request).image)
            resources = mapping.resources(place.gpus)
            plan = build_plan(job, self._site, mapping=mapping, resources=resources, environment=environment)
        except ClaryError as error:
            await self._hub.apply(job.name, events.LaunchFailed(message=error.message, fault=error.fault))
            return
        epoch = int(self._clock.now().timestamp())
        streams = tuple(f"{job.name}/{host.name}-{epoch}" for host in plan.hosts)
        asked = events.HostsAsked(
            plan=to_plain(plan), host_names=tuple(host.name for host in plan.hosts), log_streams=streams
        )
        job = await self._hub.apply(job.name, asked)
        if not job.is_terminal:
            self._in_background(job.name, self._launch(job))

    async def _launch(self, job: TrainingJob) -> None:
        """Create streams, network and agents; every step may be repeated after a crash of the service."""
        plan = from_plain(LaunchPlan, job.plan)
        self._launched.add((job.name, job.attempt))
        try:
            for stream in job.log_streams:
                await self._logs.create_stream(stream, job.transitions[-1].started_at)
            plan = await self._engine.launch(plan)
            await self._hub.apply(job.name, events.NetworkReady(plan=to_plain(plan)))
            await self._engine.start_agents(plan)
        except ClaryError as error:
            log.warning("job %s: hosts could not be had: %s", job.name, error.message)
            await self._hub.apply(job.name, events.LaunchFailed(message=error.message, fault=error.fault))

    async def _follow(self, job: TrainingJob) -> None:
        if job.is_terminal:
            await self._release_when_left(job)
            return
        plan = from_plain(LaunchPlan, job.plan)
        alive = await self._engine.agents_alive(plan)
        if (job.name, job.attempt) not in self._launched and not any(alive.values()) and _is_unheard(job):
            # Asked for by a service that ended before it could start the agents.
            self._in_background(job.name, self._launch(job))
            return
        for event in self._dead_agents(job, alive):
            log.warning("job %s: %s", job.name, event.why)
            job = await self._hub.apply(job.name, event)
        due = deadlines.due(job, now=self._clock.now(), limits=self._limits, last_heard=self._gateway.last_heard(job))
        if due is not None:
            await self._hub.apply(job.name, due)

    def _dead_agents(self, job: TrainingJob, alive: Mapping[str, bool]) -> list[events.HostLost]:
        return [
            events.HostLost(
                host=name, why=f"{name} was lost: its agent ended in phase {record.facts.phase.value} without leave"
            )
            for name, record in job.hosts.items()
            if record.facts.phase not in (HostPhase.LOST, HostPhase.RELEASED) and not alive.get(name, False)
        ]

    async def _release_when_left(self, job: TrainingJob) -> None:
        ended_at = self._ended_at.setdefault(job.name, self._clock.monotonic())
        plan = from_plain(LaunchPlan, job.plan)
        alive = await self._engine.agents_alive(plan)
        has_waited = self._clock.monotonic() - ended_at >= RELEASE_WAIT_S
        if any(alive.values()) and not has_waited:
            return
        self._in_background(job.name, self._release(job))

    async def _release(self, job: TrainingJob) -> None:
        try:
            for stream in job.log_streams:
                await self._logs.seal(stream)
            await self._engine.release(job.name, job.attempt)
        except ClaryError as error:
            log.warning("job %s: release failed, trying again: %s", job.name, error.message)
            await asyncio.sleep(RETRY_RELEASE_S)
            return
        await self._hub.apply(job.name, events.Released())
        self._gateway.forget(job)
        self._launched.discard((job.name, job.attempt))
        self._ended_at.pop(job.name, None)

    def _in_background(self, name: str, work: Coroutine[None, None, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception:  # boundary: as in make_pass, for the work of one job that takes longer than a pass
                log.exception("job %s: background work failed; the next pass tries again", name)
            finally:
                self._tasks.pop(name, None)

        self._tasks[name] = asyncio.create_task(guarded(), name=f"job:{name}")


def _is_unheard(job: TrainingJob) -> bool:
    return all(record.report_number == 0 for record in job.hosts.values())
