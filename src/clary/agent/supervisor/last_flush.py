"""The flush of checkpoints after the program's end: its time limit, and the failure if files are not stored.

Where: `host_life` has one. Only the supervisor's thread calls its methods; `on_done` is called from another thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from clary.agent.checkpoints.outcomes import Flushed, named
from clary.agent.supervisor.steps import Checkpoints
from clary.base.errors import Fault
from clary.contract.agent_protocol import FAILURE_REASON, Failure, ProcessExit
from clary.contract.launch_plan import LaunchPlan
from clary.contract.stop_limits import FAILURE_FLUSH_S, LEAST_FLUSH_S

logger = logging.getLogger(__name__)


class LastFlush:
    """Stores the last checkpoints, once.

    Args:
        plan: of the attempt, with the prefix and the limit after a normal end.
        on_done: called with the outcome from another thread; not called without a flush.
    """

    def __init__(self, plan: LaunchPlan, *, on_done: Callable[[Flushed], None]) -> None:
        self._plan = plan
        self._on_done = on_done
        self._checkpoints: Checkpoints | None = None
        self._thread: threading.Thread | None = None
        self._grace_ends_at_s: float | None = None
        self._is_of_failure = False
        self._has_finished = False

    @property
    def is_running(self) -> bool:
        """Whether the flush has begun but not ended."""
        return self._thread is not None and self._thread.is_alive()

    def expect_stop(self, grace_s: float, *, reason: str) -> None:
        """Record an order to stop: a running flush is limited by its grace, or after a failure by `FAILURE_FLUSH_S`."""
        if reason == FAILURE_REASON:
            self._is_of_failure = True
        else:
            ends_at_s = time.monotonic() + grace_s
            earlier_s = self._grace_ends_at_s
            self._grace_ends_at_s = ends_at_s if earlier_s is None else min(earlier_s, ends_at_s)
        if self.is_running and self._checkpoints is not None:
            self._checkpoints.shorten(self._limit_s())

    def begin(self, checkpoints: Checkpoints, *, has_failed: bool, has_finished: bool) -> None:
        """Start the flush after all processes of the program have ended.

        Args:
            has_finished: whether every process ended with 0.
        """
        self._has_finished = has_finished
        self._is_of_failure = self._is_of_failure or has_failed
        self._checkpoints = checkpoints
        limit_s = self._limit_s()
        self._thread = threading.Thread(target=self._run, args=(limit_s,), name="checkpoint-flush", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; return whether it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.is_running

    def in_words(self, outcome: Flushed) -> str:
        """Return a sentence about the files that were not stored."""
        if outcome.is_over_limit:
            return f"checkpoints did not reach {self._plan.checkpoint_s3_uri}: {outcome.error}"
        number = len(outcome.missed)
        files = "1 file is" if number == 1 else f"{number} files are"
        return (
            f"checkpoints did not reach {self._plan.checkpoint_s3_uri} in full: {files} in no set "
            f"({named(outcome.missed)}): {outcome.error}"
        )

    def failure(self, outcome: Flushed, exits: Sequence[ProcessExit], failure: Failure | None) -> Failure | None:
        """Return the failure of a finished program whose last checkpoints are in no checkpoint set, or None.

        Return None for a stopped or failed program, whose end has another cause.

        Args:
            outcome: of the flush.
            exits: of all processes of the program.
            failure: of the program; None if it has not failed.
        """
        has_finished = bool(exits) and all(item.exit_code == 0 and not item.is_consequence for item in exits)
        if not outcome.missed or failure is not None or not has_finished:
            return None
        message, now = self.in_words(outcome), datetime.now(timezone.utc)
        if outcome.is_over_limit:
            return Failure(fault=Fault.USER.value, message=message, retryable=False, at=now)
        return Failure(fault=Fault.INFRASTRUCTURE.value, message=message, retryable=True, at=now)

    def _limit_s(self) -> float:
        limits_s = [self._plan.checkpoint_flush_s]
        if self._grace_ends_at_s is not None:
            limits_s.append(max(LEAST_FLUSH_S, self._grace_ends_at_s - time.monotonic()))
        if self._is_of_failure:
            limits_s.append(FAILURE_FLUSH_S)
        return min(limits_s)

    def _run(self, limit_s: float) -> None:
        assert self._checkpoints is not None
        try:
            outcome = self._checkpoints.flush(limit_s, has_finished=self._has_finished)
        except Exception as error:  # error boundary: a host must end even if its mirror fails
            logger.exception("unexpected error while checkpoints were flushed")
            outcome = Flushed(missed=(".",), error=f"{type(error).__name__}: {error}")
        self._on_done(outcome)
