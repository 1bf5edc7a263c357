"""The service's side of pools' agents: which attempt a host serves next, and whether it is done with the last.

Where: `server.route_table` calls this; the reconciler asks whether hosts have come back. What is
remembered here is told again by the agents themselves with each question, so it may be lost with the service.
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
from clary.control.engines.cluster.enrolments import host_token
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.hub import JobHub

_HOST = re.compile(r"algo-([1-9][0-9]{0,4})")
_LOOK_S = 1.0  # longest time between looks at who holds the pool, should a wake-up be missed


class Claims(Protocol):
    """The part of an engine's enrolments that tells the agents of nodes apart."""

    def claim_of(self, tag: str, index: int) -> str:
        """Return the digest of the claim by which a number is held; empty if nobody holds it."""

    def given_up(self, tag: str) -> frozenset[str]:
        """Return the digests of claims that were given up."""


class PoolGateway:
    """Answers the agents of pools.

    Args:
        hub: knows which job holds which pool.
        clock: for waits.
        pool_token: pool -> the bearer token of its agents.
        claims: of boots on other machines: a pool that goes on without a node must not serve that node any more. None
            where hosts are this machine's, which are killed.
    """

    def __init__(
        self,
        hub: JobHub,
        clock: Clock,
        *,
        pool_token: Callable[[str], str],
        claims: Claims | None = None,
    ) -> None:
        self._hub = hub
        self._clock = clock
        self.token_of = pool_token
        self._claims = claims
        self._served: dict[str, dict[str, str]] = {}  # pool -> host -> the attempt that it is done with
        self._started_s = clock.monotonic()
        self._heard_s: dict[tuple[str, str], float] = {}  # pool and host -> when it last asked, or was seen to wait
        self._changes: dict[str, asyncio.Event] = {}  # pool -> set when it may have another attempt to serve

    def authorize(self, pool: str, token: str, host: str = "") -> None:
        """Let the pool's agents in.

        Args:
            pool: that they name.
            token: that they send.
            host: that they name.
        Raises: WireError 403 for a wrong token, 410 for a pool that nobody holds any more and for a node that the pool
            goes on without.
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
        """Wait up to `wait_s` for an attempt other than `after`, which the host is done with; return it or None.

        Args:
            pool: of the agent.
            host: of the agent.
            after: attempt, as JOB:ATTEMPT, or empty.
            wait_s: seconds; 0 returns at once.
            token: of the agent; it may end while the agent waits, and is looked at again.
        Raises: WireError 410 when the pool has ended, or goes on without the agent's node.
        """
        self._served.setdefault(pool, {})[host] = after
        deadline_s = self._clock.monotonic() + max(0.0, wait_s)
        while True:
            change = self._changes.setdefault(pool, asyncio.Event())
            if token is None:
                self._require_held(pool)
            else:
                self.authorize(pool, token, host)
            self._heard_s[pool, host] = self._clock.monotonic()
            found = self._assignment(pool, host)
            if found is not None and found.name != after:
                return found
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                return None
            try:
                async with asyncio.timeout(min(left_s, _LOOK_S)):
                    await change.wait()
            except TimeoutError:
                continue

    def wake(self, pool: str) -> None:
        """Let the pool's agents look again."""
        change = self._changes.pop(pool, None)
        if change is not None:
            change.set()

    def is_done(self, job: TrainingJob, host: str) -> bool:
        """Whether a host has come back from the job's current attempt."""
        return self._served.get(job.pool, {}).get(host) == f"{job.name}:{job.attempt}"

    def silent_s(self, pool: str, host: str) -> float:
        """Return the seconds since a host last asked, or since this service began, whichever is less."""
        return self._clock.monotonic() - self._heard_s.get((pool, host), self._started_s)

    def forget(self, pool: str) -> None:
        """Forget an ended pool, and wake its agents that wait: they hear that it has ended."""
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
            if planned is not None and planned["address"]:  # the engine has made the attempt's place
                return PoolAssignment(job=job.name, attempt=job.attempt, token=job.plan["agent_token"])
        return None
