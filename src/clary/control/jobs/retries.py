"""Decides whether a job is retried after a failed attempt, and when. Pure.

Where: `attempts` calls `decide` when no process of a failed attempt runs any more, and earlier to predict a retry.
SageMaker retries InternalServerError alone (RetryStrategy, "the number of times to retry the job when the job fails due
to an InternalServerError"): a program that fails will fail again.

The pause before a retry doubles with each consecutive attempt that has failed without storing a checkpoint: such a job
is likely to fail again. After an attempt that has stored a checkpoint, the job is retried at once, even if its hosts
were lost often.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clary.base.errors import Fault
from clary.contract.agent_protocol import HostFacts, HostPhase
from clary.control.jobs.training_job import AttemptEnd, EndCause, TrainingJob

FIRST_PAUSE_S = 1.0  # after the second consecutive failure; none after the first: most losses are single events
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class RetryDecision:
    """Decision on a failed attempt."""

    is_retried: bool
    reason: str
    pause_s: float = 0.0  # before the next attempt


def decide(job: TrainingJob) -> RetryDecision:
    """Decide on a job whose attempt has failed; `job.failure` has the reason."""
    failure, rule = job.failure, job.restart_rule
    if failure is None:
        return RetryDecision(is_retried=False, reason="nothing has failed")
    if rule.max_restarts == 0:
        return RetryDecision(is_retried=False, reason="no restarts were asked for (RetryStrategy, max_restarts)")
    if not failure.is_retryable:
        return RetryDecision(is_retried=False, reason=f"a retry would end in the same way ({failure.verdict})")
    if failure.fault == Fault.ALGORITHM.value and not rule.includes_programs:
        return RetryDecision(is_retried=False, reason="the program failed, and restart_programs is off")
    num_restarts = _num_restarts(job)
    if num_restarts >= rule.max_restarts:
        return RetryDecision(is_retried=False, reason=f"it was restarted {num_restarts} times, as often as it may be")
    return RetryDecision(
        is_retried=True,
        reason=f"restart {num_restarts + 1} of at most {rule.max_restarts}",
        pause_s=_pause_s(job),
    )


def why_wait(job: TrainingJob) -> str:
    """Return a sentence on why the verdict on an ended attempt has to wait for evidence; empty if the verdict is final.

    A rank that ends with an exit code, or reports a broken connection, may have reacted to the loss of a host or link,
    which is noticed seconds later. The verdict waits only if such a loss would be retried.
    """
    failure = job.failure
    if job.end_cause is not EndCause.FAILURE or failure is None or not failure.may_be_answer or job.has_all_evidence:
        return ""
    if len(job.hosts) == 1 or any(record.facts.phase is HostPhase.LOST for record in job.hosts.values()):
        return ""
    if job.restart_rule.max_restarts <= _num_restarts(job) or decide(job).is_retried:
        return ""
    return f"{failure.reason}: this may be the answer to the loss of another host or link, which is noticed later"


def _num_restarts(job: TrainingJob) -> int:
    return sum(attempt.kind is AttemptEnd.RESTARTED for attempt in job.past_attempts)


def _pause_s(job: TrainingJob) -> float:
    """Return the seconds before the next attempt, by the number of consecutive failures without a checkpoint."""
    if _has_got_on(record.facts for record in job.hosts.values()):
        return 0.0
    num_fruitless = 0  # consecutive failed attempts before this one
    for attempt in reversed(job.past_attempts):
        if attempt.kind is AttemptEnd.RESTARTED:
            if _has_got_on(attempt.hosts.values()):
                break
            num_fruitless += 1
    return min(FIRST_PAUSE_S * 2 ** (num_fruitless - 1), LONGEST_PAUSE_S) if num_fruitless else 0.0


def _has_got_on(hosts: Iterable[HostFacts]) -> bool:
    """Whether a host of an attempt has stored a checkpoint set."""
    return any(facts.checkpoints is not None and facts.checkpoints.committed_at is not None for facts in hosts)
