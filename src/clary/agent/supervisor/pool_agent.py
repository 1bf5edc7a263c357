"""The agent of one host of a pool: serves one attempt after the other.

Where: `python -m clary.agent` runs one. It is started for an attempt, and leaves with it if the service says that the
pool ends too. Otherwise it asks the service for the next attempt, which also reports that the last one is done. Each
attempt has a supervisor of its own; no state of an attempt reaches the next.
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
ORPHAN_S = 600.0  # without the service, before the host is given up; nothing runs on it meanwhile

logger = logging.getLogger(__name__)


class Assignments(Protocol):
    """The service as the agent of a pool sees it; `PoolClient` outside of tests."""

    def next_assignment(self, after: str, *, wait_s: float) -> PoolAssignment | None:
        """Wait for an attempt other than `after`."""

    def break_off(self) -> None:
        """Break off the wait."""


class Attempt(Protocol):
    """One attempt on this host; `Supervisor` outside of tests."""

    is_last: bool  # after its end: whether the host serves no further attempt

    def run(self) -> int:
        """Run the attempt and return an exit code."""

    def terminate(self, why: str) -> None:
        """Report to the service that the host's capacity ends, for the reason `why`; stop the program and leave."""


class Between(Protocol):
    """Work on the host while no attempt runs; `StandbyKeeper` outside of tests."""

    def prepare(self) -> None:
        """Prepare the host for the next attempt; returns soon."""

    def close(self) -> None:
        """Remove the prepared host."""


class PoolAgent:
    """Runs one host of a pool; `run` returns the agent's exit code.

    Args:
        first: the attempt to begin with.
        assignments: source of further attempts.
        make_attempt: builds the object that runs an attempt.
        between: returns the object that prepares the next attempt, always the same; called after the first attempt.
        orphan_s: how long the service may be unreachable while nothing runs.
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
        """Leave; an attempt that runs ends first, with the grace that is left. Safe in a signal handler."""
        self._is_terminated = True
        self._bell.put(None)  # not an Event: a signal that interrupts its lock would wait for itself
        if (attempt := self._attempt) is not None:
            attempt.terminate(why)
        else:
            self._assignments.break_off()

    def run(self) -> int:
        """Serve attempts until the pool ends; nothing is left behind afterwards."""
        try:
            return self._serve()
        finally:
            if self._has_prepared:
                self._between().close()

    def _serve(self) -> int:
        assignment: PoolAssignment | None = self._first
        while assignment is not None:
            attempt = self._attempt = self._make_attempt(assignment)
            if self._is_terminated:  # `terminate` came while the attempt was being made
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
        """Ask the service until it names an attempt; return None when there will be no more."""
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
