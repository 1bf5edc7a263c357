"""Hosts on other machines: requests them from a scheduler, lets their boots enrol, and ends them.

Where: the reconciler calls it through `engines.interface.Engine`, and through `Queue` for waiting jobs. The scheduler
is Slurm or boxes. No process of a host is a child of the service, so that hosts outlive the service:

    <home>/allocations/TAG.json   which boot holds which number of an allocation
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clary.base.clock import Clock
from clary.base.errors import EngineError, Fault
from clary.contract.enrolment import Admission
from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.control.engines.cluster.bundle import Bundle
from clary.control.engines.cluster.enrolments import Enrolments, host_token
from clary.control.engines.cluster.node_kinds import counts
from clary.control.engines.cluster.node_networks import joined
from clary.control.engines.cluster.queue import Grant
from clary.control.engines.cluster.scheduler import (
    Allocation,
    AllocationOrder,
    AllocationState,
    Boot,
    ClusterScheduler,
    Ended,
    Member,
    NodeKind,
)
from clary.control.engines.interface import Capacity, CapacityEnds, HeldAttempt, HostState, Released
from clary.control.scheduling.machine import Machine

ALLOCATIONS_FOLDER = "allocations"
LOOK_S = 1.0  # interval of queries of the scheduler while a gang enrols
ASK_AGAIN_S = 10.0  # time after which an order that was lost or carried out twice is corrected
SETTLED_S = 5.0  # time after which the scheduler's view of a host has precedence over its boot's
MOST_FAILURES = 3  # boots of one host that end early: a node is broken, or cannot reach the service
END_WAIT_S = 10.0  # wait for the end of an allocation; afterwards the reaper ends it
KINDS_INTERVAL_S = 15.0
SHARED = (
    "Hosts share the network of their nodes: programs reach what a node reaches, and links are neither shaped nor cut.",
)

_log = logging.getLogger(__name__)


class ClusterEngine:
    """Hosts from a scheduler of other machines.

    Args:
        scheduler: starts and ends boots.
        home: state folder of the service.
        clock: clock for waits.
        bundle: the agent's bundle.
        boot: the boot to start on each node.
        needs_namespaces: whether nodes without namespaces are refused.
    """

    def __init__(
        self,
        scheduler: ClusterScheduler,
        home: Path,
        clock: Clock,
        *,
        bundle: Bundle,
        boot: Boot,
        needs_namespaces: bool = False,
    ) -> None:
        self._needs_namespaces = needs_namespaces
        self._asked_s: dict[str, float] = {}  # tag -> monotonic time of the last request to the scheduler
        self.scheduler = scheduler
        self.bundle = bundle
        self._boot = boot
        self._clock = clock
        self.enrolments = Enrolments(
            home / ALLOCATIONS_FOLDER, scheduler.why_not_proved, clock, bundle_digest=bundle.digest
        )
        self.kinds: list[NodeKind] = []  # from the scheduler's last answer
        self._alive: set[tuple[str, int]] = set()  # hosts of waiting jobs whose boots were alive at the last poll
        self._failures: dict[tuple[str, int], int] = {}  # host -> boots that ended before they had enrolled
        self._unheard = ""  # why the scheduler does not answer; empty while it does
        self._last: Mapping[str, Allocation] = {}

    @property
    def service_url(self) -> str:
        """URL at which nodes reach the service."""
        return self._boot.service_url

    async def start(self) -> None:
        """Begin to follow the scheduler. Raises: EngineError if it is not available."""
        await self.scheduler.start(self._boot)
        self.kinds = await self.scheduler.capacity()

    async def follow(self) -> None:
        """Keep `kinds` up to date until cancelled."""
        while True:
            await asyncio.sleep(KINDS_INTERVAL_S)
            await self.look_at_kinds()

    async def look_at_kinds(self) -> None:
        """Update `kinds`; keep the old kinds while the scheduler does not answer."""
        try:
            self.kinds = await self.scheduler.capacity()
        except EngineError as error:
            _log.warning("%s does not list its nodes: %s", self.scheduler.name, error.message)

    def capacity(self) -> Capacity:
        """Return all nodes as one machine, and the best isolation; each node reports its own when it enrols."""
        counted = counts(self.kinds)
        machine = Machine(
            num_cpus=sum(kind.num_cpus * count for kind, count in counted),
            memory_bytes=sum(kind.memory_bytes * count for kind, count in counted),
            num_gpus=sum(kind.num_gpus * count for kind, count in counted),
        )
        return Capacity(machine=machine, isolation=Isolation.NAMESPACES, gaps=SHARED)

    def memory_limits(self, *, looks_only: bool = False) -> str:
        """Return the mechanism of hosts' memory limits, as a text.

        Args:
            looks_only: has no effect for nodes of a cluster.
        """
        del looks_only
        return f"kept by {self.scheduler.name}, and by each node's kernel where its agent may make cgroups"

    async def ask(self, order: AllocationOrder) -> None:
        """Request the hosts of a pool that have no node; return at once.

        If the scheduler's list contains all hosts already, the request is repeated only after ASK_AGAIN_S: many jobs
        may wait, and each request reads the whole queue.

        Raises: EngineError; not retryable if boots of a host have ended MOST_FAILURES times before they had enrolled.
        """
        self.enrolments.expect(order.tag, len(order.hosts))
        known = (await self._allocations()).get(order.tag)
        self._count_failures(order, known)
        now_s = self._clock.monotonic()
        if _is_covered(order, known) and now_s - self._asked_s.get(order.tag, float("-inf")) < ASK_AGAIN_S:
            return
        await self.scheduler.ask(order)
        self._asked_s[order.tag] = now_s
        # Read the list again, as the scheduler did: a host that the scheduler requested again belongs to another boot.
        known = (await self._allocations()).get(order.tag)
        for index in self.enrolments.reports(order.tag):
            member = None if known is None else known.members.get(index)
            is_gone = member is None or not member.is_alive
            # The scheduler's list may be older than a boot that has just enrolled.
            if is_gone and self.enrolments.age_s(order.tag, index) > SETTLED_S:
                await self.enrolments.release(order.tag, index)

    def _count_failures(self, order: AllocationOrder, known: Allocation | None) -> None:
        enrolled = self.enrolments.reports(order.tag)
        for wish in order.hosts:
            key, member = (order.tag, wish.index), known.members.get(wish.index) if known is not None else None
            if member is not None and member.is_alive:
                self._alive.add(key)
                continue
            if key in self._alive and wish.index not in enrolled:
                self._failures[key] = self._failures.get(key, 0) + 1
                if self._failures[key] >= MOST_FAILURES:
                    why = member.why_dead if member is not None else ""
                    raise EngineError(
                        f"algo-{wish.index + 1}: its boot has ended {MOST_FAILURES} times before it had enrolled"
                        f"{f' ({why})' if why else ''}; what it said is in the output that {self.scheduler.name} keeps"
                    )
            self._alive.discard(key)

    def _forget_failures(self, tag: str) -> None:
        self._alive = {key for key in self._alive if key[0] != tag}
        self._failures = {key: number for key, number in self._failures.items() if key[0] != tag}
        self._asked_s.pop(tag, None)

    async def grant(self, tag: str, num_hosts: int) -> Grant:
        """Return whether the hosts of a pool were granted, or the scheduler's reason why they wait."""
        known = (await self._allocations()).get(tag)
        if known is None:
            return Grant(is_granted=False, words=f"{self.scheduler.name} has been asked for {num_hosts} hosts.")
        alive = {index: member for index, member in known.members.items() if member.is_alive}
        if known.state is AllocationState.GRANTED and len(alive) >= num_hosts:
            nodes = " ".join(alive[index].node for index in sorted(alive))
            hosts = "1 host was" if num_hosts == 1 else f"{num_hosts} hosts were"
            return Grant(is_granted=True, words=f"{hosts} granted: {nodes}", notice_grace_s=known.notice_grace_s)
        return Grant(is_granted=False, words=known.reason or f"{self.scheduler.name} has not granted all hosts yet.")

    async def wanted(self, tags: Sequence[str]) -> Mapping[str, str]:
        """Return tag -> the job that waits for its nodes, for the first pool that should be ended for a waiting job."""
        return await self.scheduler.wanted(tags)

    async def launch(self, plan: LaunchPlan) -> LaunchPlan:
        """Wait until every host of the pool has enrolled; return the plan with the facts of their nodes.

        Raises: EngineError if the allocation or one of its hosts ends before all hosts have enrolled, or if a node is
            refused because it has no namespaces.
        """
        tag = plan.pool
        self.enrolments.expect(tag, len(plan.hosts))
        while not await self.enrolments.wait(tag, LOOK_S):
            await self._require_members(tag, plan)
        reports = self.enrolments.reports(tag)
        ready = joined(plan, {host.index: reports[host.index] for host in plan.hosts})
        plain = [
            f"{host.name} on {reports[host.index].node} is plain processes, which nothing keeps apart: "
            f"{reports[host.index].isolation_why or 'it allows no namespaces'}"
            for host in plan.hosts
            if reports[host.index].isolation != Isolation.NAMESPACES.value
        ]
        if plain and self._needs_namespaces:
            raise EngineError(f"setting isolation asks for namespaces; {'; '.join(plain)}", fault=Fault.CAPACITY)
        return replace(ready, warnings=(*ready.warnings, *plain))

    async def start_agents(self, plan: LaunchPlan, *, heard: Collection[str] = ()) -> None:
        """Let the boots of the pool become agents; agents that already run poll for the attempt.

        Args:
            plan: result of `launch`.
            heard: not needed, since a node boots once: an ended agent is not started again.
        """
        del heard
        self.enrolments.expect(plan.pool, len(plan.hosts))
        self.enrolments.admit(
            plan.pool,
            {
                host.index: Admission(
                    bundle=self.bundle.digest,
                    pool=plan.pool,
                    pool_token=host_token(plan.pool_token, self.enrolments.claim_of(plan.pool, host.index)),
                    job=plan.job_name,
                    attempt=plan.attempt,
                    agent_token=plan.agent_token,
                    host=host.name,
                )
                for host in plan.hosts
                if self.enrolments.claim_of(plan.pool, host.index)
            },
        )

    async def hosts(self, plan: LaunchPlan) -> Mapping[str, HostState]:
        """Return host name -> state from the scheduler; no host is lost while the scheduler does not answer."""
        members = await self._members(plan.pool)
        if members is None:
            return {host.name: HostState(is_alive=True) for host in plan.hosts}
        gone = self._last.get(plan.pool)
        words = gone.reason if gone is not None and gone.state is AllocationState.GONE else ""
        return {host.name: _state_of(members.get(host.index), words) for host in plan.hosts}

    async def end_host(self, plan: LaunchPlan, host: str) -> None:
        """End one host and free its number for a new boot; its old boot is refused even if the end is not certain."""
        index = plan.host(host).index
        await self.enrolments.release(plan.pool, index)
        ended = await self.scheduler.end_host(plan.pool, index)
        if ended is not Ended.CERTAIN:
            _log.warning("%s, %s: processes of it may be left: its end is %s", plan.pool, host, ended.value)

    async def end_attempt(self, job_name: str, attempt: int) -> Released:
        """Do nothing: an attempt's folders are on its node, and are removed with the host."""
        del job_name, attempt
        return Released()

    async def end(self, pool: str) -> Released:
        """End an allocation and refuse its boots; wait a moment for its end. Raises: EngineError."""
        self.enrolments.forget(pool)
        self._forget_failures(pool)
        ended = await self.scheduler.end(pool)
        deadline_s = self._clock.monotonic() + END_WAIT_S
        while ended is not Ended.CERTAIN and self._clock.monotonic() < deadline_s:
            known = (await self._allocations()).get(pool)
            if known is None or known.state is AllocationState.GONE:
                break
            await asyncio.sleep(LOOK_S)
        return Released(removed=(f"allocation {pool}",))

    async def forget(self, job_name: str) -> None:
        """Do nothing: this machine has no folders of the job."""
        del job_name

    async def unreleased(self) -> list[HeldAttempt]:
        """Return the allocations with this service's mark that have not ended, and those with a record on disk."""
        found = {tag for tag, one in (await self._allocations()).items() if one.state is not AllocationState.GONE}
        return [HeldAttempt(name=tag, attempt=1) for tag in sorted(found | set(self.enrolments.known()))]

    async def released_jobs(self) -> list[str]:
        """Return an empty list: this machine has no folders of jobs."""
        return []

    async def set_aside(self, job_name: str) -> str:
        """Do nothing: this machine has no folders of the job."""
        return f"none, {job_name} has no folder here"

    async def leftovers(self) -> list[str]:
        """Return an empty list: the reaper ends allocations that no job claims."""
        return []

    async def _require_members(self, tag: str, plan: LaunchPlan) -> None:
        known = (await self._allocations()).get(tag)
        if known is None or known.state is AllocationState.GONE:
            why = "" if known is None else f": {known.reason}"
            raise EngineError(f"the allocation of the hosts ended before all had enrolled{why}", retryable=True)
        for host in plan.hosts:
            member = known.members.get(host.index)
            if member is not None and not member.is_alive:
                raise EngineError(
                    f"{host.name} on {member.node} ended before it had enrolled: {member.why_dead or 'no word of why'}",
                    retryable=True,
                )

    async def _members(self, tag: str) -> Mapping[int, Member] | None:
        """Return the members of an allocation; None while the scheduler does not answer."""
        try:
            known = (await self._allocations()).get(tag)
        except EngineError as error:
            if error.message != self._unheard:
                _log.warning("%s does not answer; hosts count as alive: %s", self.scheduler.name, error.message)
                self._unheard = error.message
            return None
        self._unheard = ""
        if known is None:
            return {}
        if known.state is AllocationState.GONE:
            return {index: replace(member, is_alive=False) for index, member in known.members.items()}
        return known.members

    async def _allocations(self) -> Mapping[str, Allocation]:
        self._last = await self.scheduler.allocations()
        return self._last


def _is_covered(order: AllocationOrder, known: Allocation | None) -> bool:
    """Whether each host of an order has a living member, or the whole order waits in the scheduler's queue."""
    if known is None or not all(member.is_alive for member in known.members.values()):
        return False
    if known.state is AllocationState.PENDING:
        return True
    return known.state is AllocationState.GRANTED and all(wish.index in known.members for wish in order.hosts)


def _state_of(member: Member | None, words: str) -> HostState:
    """Return the state of a host; `words` describe the end of its whole allocation."""
    if member is None:
        return HostState(is_alive=False)
    notice = member.notice
    return HostState(
        is_alive=member.is_alive,
        why_dead="" if member.is_alive else member.why_dead or words,
        capacity_ends=None if notice is None else CapacityEnds(why=notice.why, ends_at=notice.ends_at),
    )
