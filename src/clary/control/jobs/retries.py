"""Whether a job whose attempt has failed is tried again, and when. Pure.

Where: `attempts` asks once nothing of a failed attempt runs any more. The original retries InternalServerError alone
(RetryStrategy, "the number of times to retry the job when the job fails due to an InternalServerError"): a program that
fails will fail again.
"""

from __future__ import annotations

from dataclasses import dataclass

from clary.contract.errors import Fault
from clary.control.jobs.training_job import AttemptEnd, TrainingJob

FIRST_PAUSE_S = 1.0  # before the second restart; the first comes at once, since most hosts are lost alone
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class RetryDecision:
    """What becomes of a failed attempt."""

    is_retried: bool
    reason: str
    pause_s: float = 0.0  # before the next attempt


def decide(job: TrainingJob) -> RetryDecision:
    """Decide on a job whose attempt has failed; `job.failure` says why."""
    failure, rule = job.failure, job.restart_rule
    if failure is None:
        return RetryDecision(is_retried=False, reason="nothing has failed")
    if rule.max_restarts == 0:
        return RetryDecision(is_retried=False, reason="no restarts were asked for (RetryStrategy, max_restarts)")
    if not failure.is_retryable:
        return RetryDecision(is_retried=False, reason=f"a retry would end in the same way ({failure.verdict})")
    if failure.fault == Fault.ALGORITHM.value and not rule.includes_programs:
        return RetryDecision(is_retried=False, reason="the program failed, and restart_programs is off")
    num_restarts = sum(attempt.kind is AttemptEnd.RESTARTED for attempt in job.past_attempts)
    if num_restarts >= rule.max_restarts:
        return RetryDecision(is_retried=False, reason=f"it was restarted {num_restarts} times, as often as it may be")
    return RetryDecision(
        is_retried=True,
        reason=f"restart {num_restarts + 1} of at most {rule.max_restarts}",
        pause_s=min(FIRST_PAUSE_S * 2 ** (num_restarts - 1), LONGEST_PAUSE_S) if num_restarts else 0.0,
    )
