"""The agent of one host of a pool: serves one attempt after the other.

Where: `python -m clary.agent` runs it. It is started for an attempt, and exits after it if the service also ends the
pool. Otherwise it polls the service for the next attempt; the poll also tells the service that the previous attempt has
ended. Each attempt has its own supervisor; only the object that prepares the next host outlives an attempt.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable
from typing import Protocol

from clary.agent.service_client import AttemptOver, BackOff, ServiceRefused, ServiceUnreachable
from clary.agent.supervisor.supervisor import EXIT_RELEASED, EXIT_TERMINATED
from clary.contract.agent_protocol import PoolAssignment

WAIT_S = 10.0  # longest wait of one request
ORPHAN_S = 600.0  # time without the service before the host is given up; no attempt runs meanwhile

logger = logging.getLogger(__name__)


class Assignments(Protocol):
    """The service's interface for the agent of a pool; `PoolClient` outside of tests."""

    def next_assignment(self, after: str, *, wait_s: float) -> PoolAssignment | None:
        """Wait for an attempt other than `after`."""

    def break_off(self) -> None:
        """Abort the wait."""


class Attempt(Protocol):
    """One attempt on this host; `Supervisor` outside of tests."""

    is_last: bool  # after the attempt's end: whether the host serves no further attempt

    def run(self) -> int:
        """Run the attempt and return an exit code."""

    def terminate(self, why: str) -> None:
        """Report the end of the host's capacity with the reason `why`; stop the program and exit."""


class Between(Protocol):
    """Work on the host between attempts; `StandbyKeeper` outside of tests."""

    def prepare(self) -> None:
        """Prepare the host for the next attempt; return soon."""

    def close(self) -> None:
        """Remove the prepared host."""


class PoolAgent:
    """Runs one host of a pool; `run` returns the agent's exit code.

    Args:
        first: the first attempt.
        assignments: source of further attempts.
        make_attempt: builds the object that runs an attempt.
        between: returns the object that prepares the next attempt, the same at each call; called after the first
            attempt.
        orphan_s: how long the service may be unreachable while no attempt runs.
    """

    def __init__(
        self,
        first: PoolAssignment,
        assignments: Assignments,
        *,
        make_attempt: Callable[[PoolAssignment], Attempt],
        between: Callable[[], Between],
        orphan_s: float = ORPHAN_S,
    ) -> None:
        self._first = first
        self._assignments = assignments
        self._make_attempt = make_attempt
        self._between = between
        self._orphan_s = orphan_s
        self._attempt: Attempt | None = None
        self._is_terminated = False
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # filled by `terminate`; safe in a signal handler
        self._has_prepared = False

    def terminate(self, why: str = "SIGTERM") -> None:
        """Exit; a running attempt ends first, with the remaining grace. Safe in a signal handler."""
        self._is_terminated = True
        self._bell.put(None)  # not an Event: a handler could deadlock on its lock
        if (attempt := self._attempt) is not None:
            attempt.terminate(why)
        else:
            self._assignments.break_off()

    def run(self) -> int:
        """Serve attempts until the pool ends; then remove all resources."""
        try:
            return self._serve()
        finally:
            if self._has_prepared:
                self._between().close()

    def _serve(self) -> int:
        assignment: PoolAssignment | None = self._first
        while assignment is not None:
            attempt = self._attempt = self._make_attempt(assignment)
            if self._is_terminated:  # `terminate` was called while the attempt was being created
                return EXIT_TERMINATED
            code = attempt.run()
            self._attempt = None
            if code != EXIT_RELEASED or self._is_terminated:
                logger.error("attempt %s ended with code %d: this host serves no other", assignment.name, code)
                return code if code != EXIT_RELEASED else EXIT_TERMINATED
            if attempt.is_last:
                return EXIT_RELEASED
            self._has_prepared = True
            self._between().prepare()
            assignment = self._next(assignment.name)
        return EXIT_TERMINATED if self._is_terminated else EXIT_RELEASED

    def _next(self, served: str) -> PoolAssignment | None:
        """Poll the service until it returns an attempt; return None if there will be no more attempts."""
        heard_at_s = time.monotonic()
        back_off = BackOff()
        while not self._is_terminated:
            try:
                found = self._assignments.next_assignment(served, wait_s=WAIT_S)
            except AttemptOver as error:
                logger.info("leaving: %s", error)
                return None
            except (ServiceUnreachable, ServiceRefused) as error:
                if time.monotonic() - heard_at_s > self._orphan_s:
                    logger.error("leaving: no service for %g s: %s", self._orphan_s, error)
                    return None
                with contextlib.suppress(queue.Empty):
                    self._bell.get(timeout=back_off.next_s())
                continue
            heard_at_s = time.monotonic()
            back_off.reset()
            if found is not None:
                return found
        return None
