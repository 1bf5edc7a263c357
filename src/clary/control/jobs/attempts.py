"""The end of an attempt whose job continues, because capacity is reclaimed or a failure is retried. Pure.

Where: `transitions` calls these. All hosts are stopped at once. They are released when no process runs on any of them.
When the engine has ended them, or keeps them in the job's pool, the attempt is recorded as past and the job waits in
the queue again. A host that is lost, or fails to reach the object store, while results are uploaded leads to a retry,
too, as long as no final object has been reported: staged results belong to one attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from clary.contract.agent_protocol import RECLAIM_REASON, CapacityNotice, HostFacts, HostPhase, ProcessExit
from clary.contract.statuses import SecondaryStatus
from clary.control.jobs import events, host_orders, retries
from clary.control.jobs.status_rows import enter
from clary.control.jobs.training_job import AttemptEnd, AttemptEnding, EndCause, PastAttempt, TrainingJob

# A program may end by a signal of the engine, or because its peers on another host ended, before the notice is
# reported. Agents report at once, so the two reports are moments apart.
NOTICE_SLACK_S = 2.0
_ECHO_S = 0.5  # likewise, for two events on one host, by its own clock
MAX_DETAILED = 20  # past attempts that keep their hosts' facts: every change rewrites the job's whole record
_PLANNED = ("name", "instance_type", "processes_per_host", "resources")  # of a host, read by measurements
_STATUSES = {AttemptEnd.RECLAIMED: SecondaryStatus.INTERRUPTED, AttemptEnd.RESTARTED: SecondaryStatus.RESTARTING}


def reclaim(job: TrainingJob, event: events.Reclaimed, now: datetime) -> TrainingJob:
    """Begin to end an attempt whose capacity is reclaimed.

    Return the job unchanged if it has no attempt, or if the attempt or the job is already ending. There is one
    exception: a failure reported shortly before the notice, or after it, counts as the effect of the reclaim if no
    results are being uploaded yet. The job is then retried without using up a restart.

    Args:
        job: record of the job.
        event: contains the reason and the grace of programs.
        now: current time by the job's clock.
    """
    if job.is_terminal or job.ending is not None or not job.hosts:
        return job
    if job.end_cause is not None:
        if not _is_of_reclaim(job, event):
            return job
        job = replace(job, end_cause=None, failure=None, failed_at=None, has_all_evidence=False)
    is_by_signal = event.noticed_at is not None
    ending = AttemptEnding(kind=AttemptEnd.RECLAIMED, reason=event.reason, asked_at=now, is_by_signal=is_by_signal)
    hosts = host_orders.stop(job, reason=RECLAIM_REASON, grace_s=event.grace_s)
    job = replace(job, ending=ending, stop_ordered_at=now, hosts=hosts)
    return enter(job, SecondaryStatus.INTERRUPTED, event.reason, now=now)


def explain(job: TrainingJob, event: events.ReclaimExplained, now: datetime) -> TrainingJob:
    """Replace the signal that an agent reported by the engine's reason, in an attempt that has not been released.

    Args:
        job: record of the job.
        event: contains the engine's reason.
        now: current time by the job's clock.
    """
    if job.is_terminal or job.ending is None or not job.ending.is_by_signal:
        return job
    job = replace(job, ending=replace(job.ending, reason=event.reason, is_by_signal=False))
    if job.secondary_status is not SecondaryStatus.INTERRUPTED:
        return job
    return enter(job, SecondaryStatus.INTERRUPTED, event.reason, now=now)


def retry(job: TrainingJob, now: datetime) -> TrainingJob:
    """Return a failed job with its attempt ended for a retry; the unchanged job if it is not retried now."""
    is_over = not any(record.facts.phase.may_run for record in job.hosts.values())
    if job.end_cause is not EndCause.FAILURE or not is_over or not _may_lose_results(job):
        return job
    decision = retries.decide(job)
    if not decision.is_retried or job.failure is None:
        return job
    reason = f"{job.failure.reason}; {decision.reason}"
    ending = AttemptEnding(kind=AttemptEnd.RESTARTED, reason=reason, asked_at=now, failure=job.failure)
    not_before = now + timedelta(seconds=decision.pause_s) if decision.pause_s else None
    job = replace(job, ending=ending, end_cause=None, failure=None, not_before=not_before)
    return enter(job, SecondaryStatus.RESTARTING, reason, now=now)


def will_be_retried(job: TrainingJob) -> bool:
    """Whether the job will be retried after a failure once its hosts have stopped."""
    is_open = job.end_cause is EndCause.FAILURE and job.ending is None
    return is_open and _may_lose_results(job) and retries.decide(job).is_retried


def awaits_evidence(job: TrainingJob) -> bool:
    """Whether the attempt has failed and ended, and its hosts wait for late evidence of the cause."""
    is_over = not any(record.facts.phase.may_run for record in job.hosts.values())
    is_open = not job.is_terminal and job.ending is None and not host_orders.is_uploading(job)
    return is_over and is_open and bool(retries.why_wait(job))


def follow(job: TrainingJob) -> TrainingJob:
    """Update an attempt that is ending: its program may have finished by itself, or its hosts may be released."""
    assert job.ending is not None
    # Once results were to be uploaded, exit codes of 0 prove nothing: the upload has failed.
    is_open = not (host_orders.is_uploading(job) or host_orders.is_releasing(job))
    if is_open and all(_has_finished(record.facts) for record in job.hosts.values()):
        return replace(job, ending=None, end_cause=EndCause.SUCCESS, stop_ordered_at=None)
    if not job.is_leaving:
        return job
    is_last = job.ending.kind is not AttemptEnd.RESTARTED or job.not_before is not None
    return replace(job, hosts=host_orders.release(job, is_last=is_last))


def put_on_record(job: TrainingJob, now: datetime, *, keeps_pool: bool) -> TrainingJob:
    """Return the job without its ended attempt, waiting for hosts; it keeps its pool if `keeps_pool`.

    Args:
        job: a job whose attempt has an `ending`, and whose hosts the engine has ended or keeps.
        now: current time by the job's clock.
        keeps_pool: whether its pool stays for the next attempt, with the GPUs that it holds.
    """
    assert job.ending is not None
    past = PastAttempt(
        number=job.attempt,
        kind=job.ending.kind,
        reason=job.ending.reason,
        asked_at=job.ending.asked_at,
        ended_at=now,
        failure=job.ending.failure,
        hosts={name: _compact(record.facts) for name, record in job.hosts.items()},
        planned_hosts=_planned(job.plan or {}),
    )
    older = tuple(replace(attempt, planned_hosts=()) for attempt in job.past_attempts)
    if len(older) >= MAX_DETAILED:
        older = tuple(replace(attempt, hosts={}) for attempt in older[: 1 - MAX_DETAILED]) + older[1 - MAX_DETAILED :]
    return replace(
        job,
        past_attempts=(*older, past),
        failed_at=None,
        has_all_evidence=False,
        ending=None,
        hosts={},
        plan=None,
        stop_ordered_at=None,
        is_released=True,
        pool=job.pool if keeps_pool else "",
        pool_gpus=job.held_gpus if keeps_pool else (),
    )


def wait(job: TrainingJob, reason: str, now: datetime) -> TrainingJob:
    """Return a job that waits for its next attempt, with the reason of the wait.

    Args:
        job: a job with at least one past attempt.
        reason: why the job waits, for people.
        now: current time by the job's clock.
    """
    last = job.past_attempts[-1]
    message = f"{last.reason}; {reason}"
    return enter(replace(job, pending_reason=reason), _STATUSES[last.kind], message, now=now)


def _may_lose_results(job: TrainingJob) -> bool:
    """Whether a retry takes no result away: no upload has begun, or a fault of the machines prevents it.

    Once a host has reported final objects, the attempt's results stand, and the job ends with them.
    """
    if not host_orders.is_uploading(job):
        return True
    records = job.hosts.values()
    if any(record.facts.uploaded for record in records):
        return False
    return any(record.lost_why or record.facts.could_not_upload for record in records)


def _is_of_reclaim(job: TrainingJob, event: events.Reclaimed) -> bool:
    """Whether a job ends by a failure that is an effect of the reclaim, before its upload has begun."""
    if job.end_cause is not EndCause.FAILURE or event.noticed_at is None or job.failed_at is None:
        return False
    is_with_it = job.failed_at >= event.noticed_at - timedelta(seconds=NOTICE_SLACK_S)
    return is_with_it and not host_orders.is_uploading(job)


def _has_finished(facts: HostFacts) -> bool:
    """Whether every process of a host ended by itself with exit code 0."""
    is_over = not facts.phase.may_run and facts.phase is not HostPhase.LOST
    return is_over and bool(facts.exits) and all(_has_ended_well(item, facts.notice) for item in facts.exits)


def _has_ended_well(item: ProcessExit, notice: CapacityNotice | None) -> bool:
    """Whether a process ended by itself with exit code 0, more than `_ECHO_S` before any notice of a scheduler."""
    is_free = notice is None or notice.at - item.ended_at > timedelta(seconds=_ECHO_S)
    return item.exit_code == 0 and not item.is_consequence and is_free


def _compact(facts: HostFacts) -> HostFacts:
    return replace(
        facts, clues=(), gpu_errors=(), notes=(), staged=(), uploaded=(), not_isolated=(), failure_file=None, health=()
    )


def _planned(plan: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    return tuple({key: host[key] for key in _PLANNED if key in host} for host in plan.get("hosts", ()))
