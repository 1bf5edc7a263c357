"""The service's side of pools' agents: which attempt a host serves next, and whether it has finished the last one.

Where: `server.route_table` calls this; the reconciler checks whether hosts have finished an attempt. Agents repeat
their state in each request, so the gateway's state may be lost when the service ends.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable
from typing import Protocol

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract.agent_protocol import HostPhase, PoolAssignment
from clary.control.attentive_clock import AttentiveClock
from clary.control.engines.cluster.enrolments import host_token
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.hub import JobHub

_HOST = re.compile(r"algo-([1-9][0-9]{0,4})")
_LOOK_S = 1.0  # longest interval of checks which job holds the pool, in case a wake-up is missed


class Claims(Protocol):
    """The part of an engine's enrolments that identifies the agents of nodes."""

    def claim_of(self, tag: str, index: int) -> str:
        """Return the digest of the claim of the boot that has a host number; empty if the number is free."""

    def given_up(self, tag: str) -> frozenset[str]:
        """Return the digests of claims whose nodes a pool has given up."""


class PoolGateway:
    """Answers the agents of pools.

    Args:
        hub: knows the jobs that hold pools.
        clock: measures waits.
        pool_token: pool -> the bearer token of its agents.
        claims: claims of nodes on other machines, so that a node that its pool has given up gets no attempt; None if
            hosts run on this machine, where the engine kills them.
        attentive: measures the silence of hosts, shared with the other gateways; None for a clock of its own.
    """

    def __init__(
        self,
        hub: JobHub,
        clock: Clock,
        *,
        pool_token: Callable[[str], str],
        claims: Claims | None = None,
        attentive: AttentiveClock | None = None,
    ) -> None:
        self._hub = hub
        self._clock = clock
        self.token_of = pool_token
        self._claims = claims
        self._served: dict[str, dict[str, str]] = {}  # pool -> host -> last attempt that the host has finished
        self._attentive = attentive or AttentiveClock(clock)
        self._started_s = self._attentive.monotonic()
        # (pool, host) -> last request, or last check while it waits, by the attentive clock
        self._heard_s: dict[tuple[str, str], float] = {}
        self._changes: dict[str, asyncio.Event] = {}  # pool -> set when its hosts may have another attempt to serve
        self._is_closed = False
        self._attentive.add_user(counts=self._has_pools, begin=self._begin)

    def authorize(self, pool: str, token: str, host: str = "") -> None:
        """Check that a request comes from an agent of the pool.

        Args:
            pool: pool that the request names.
            token: token in the request.
            host: host that the request names.
        Raises: WireError 403 for a wrong token; 410 for a pool that has ended, and for a node that the pool has given
            up.
        """
        sent = token.encode("utf-8", "backslashreplace")
        if not any(hmac.compare_digest(good.encode(), sent) for good in self._tokens(pool, host)):
            if any(hmac.compare_digest(over.encode(), sent) for over in self._ended_tokens(pool)):
                raise WireError("PoolOver", f"pool {pool} goes on without this node", http_status=410)
            raise WireError("AccessDenied", f"the token does not open pool {pool}", http_status=403)
        self._require_held(pool)

    async def next_assignment(
        self, pool: str, host: str, *, after: str, wait_s: float, token: str | None = None
    ) -> PoolAssignment | None:
        """Wait up to `wait_s` for the host's next attempt, other than `after`; return it, or None after the wait.

        Args:
            pool: the agent's pool.
            host: the agent's host.
            after: attempt that the host has finished, as JOB:ATTEMPT, or empty.
            wait_s: seconds; 0 returns at once.
            token: the agent's token; it is checked again after the wait, because it may expire meanwhile.
        Raises: WireError 410 when the pool has ended, or has given up the agent's node.
        """
        self._served.setdefault(pool, {})[host] = after
        deadline_s = self._clock.monotonic() + max(0.0, wait_s)
        while True:
            change = self._changes.setdefault(pool, asyncio.Event())
            if token is None:
                self._require_held(pool)
            else:
                self.authorize(pool, token, host)
            self._heard_s[pool, host] = self._attentive.monotonic()
            self._attentive.wake()
            found = self._assignment(pool, host)
            if found is not None and found.name != after:
                return found
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0 or self._is_closed:
                return None
            try:
                async with asyncio.timeout(min(left_s, _LOOK_S)):
                    await change.wait()
            except TimeoutError:
                continue

    def close(self) -> None:
        """End all waits, also later ones, because the service ends; agents ask the next service."""
        self._is_closed = True
        for pool in list(self._changes):
            self.wake(pool)

    def wake(self, pool: str) -> None:
        """Wake the pool's waiting agents."""
        change = self._changes.pop(pool, None)
        if change is not None:
            change.set()

    def is_done(self, job: TrainingJob, host: str) -> bool:
        """Whether a host has finished the job's current attempt."""
        return self._served.get(job.pool, {}).get(host) == f"{job.name}:{job.attempt}"

    def silent_s(self, pool: str, host: str) -> float:
        """Return the seconds since a host last polled, or since this service began if the host has not polled yet.

        Time in which this service was blocked does not count.
        """
        return self._attentive.monotonic() - self._heard_s.get((pool, host), self._started_s)

    def _has_pools(self) -> bool:
        """Whether the silence of a pool's agent may be judged: only jobs hold pools."""
        return bool(self._heard_s) and bool(self._hub.active_jobs() or self._hub.waiting_jobs())

    def _begin(self) -> None:
        self._started_s = self._attentive.monotonic()
        self._heard_s.update(dict.fromkeys(self._heard_s, self._started_s))

    def forget(self, pool: str) -> None:
        """Forget an ended pool, and wake its waiting agents, which are then told that the pool has ended."""
        for host in self._served.pop(pool, {}):
            self._heard_s.pop((pool, host), None)
        self.wake(pool)

    def _tokens(self, pool: str, host: str) -> list[str]:
        if self._claims is None:
            return [self.token_of(pool)]
        number = _HOST.fullmatch(host)
        claim = "" if number is None else self._claims.claim_of(pool, int(number[1]) - 1)
        return [host_token(self.token_of(pool), claim)] if claim else []

    def _ended_tokens(self, pool: str) -> list[str]:
        given_up = () if self._claims is None else self._claims.given_up(pool)
        return [host_token(self.token_of(pool), claim) for claim in given_up]

    def _require_held(self, pool: str) -> None:
        if not self._holders(pool):
            raise WireError("PoolOver", f"pool {pool} has ended", http_status=410)

    def _holders(self, pool: str) -> list[TrainingJob]:
        jobs = (*self._hub.active_jobs(), *self._hub.waiting_jobs().values())
        return [job for job in jobs if job.pool == pool]

    def _assignment(self, pool: str, host: str) -> PoolAssignment | None:
        for job in self._holders(pool):
            record = job.hosts.get(host)
            if job.is_terminal or job.plan is None or record is None or record.facts.phase is HostPhase.LOST:
                continue
            planned = next((item for item in job.plan["hosts"] if item["name"] == host), None)
            if planned is not None and planned["address"]:  # the engine has made the attempt's folder
                return PoolAssignment(job=job.name, attempt=job.attempt, token=job.plan["agent_token"])
        return None
