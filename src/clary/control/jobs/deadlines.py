"""Events that are due for a job at a given moment. Pure.

Where: the reconciler calls `due` on every pass and applies the returned event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from clary.contract.agent_protocol import HostPhase
from clary.contract.statuses import SecondaryStatus
from clary.contract.stop_limits import STOP_ALLOWANCE_S
from clary.control.jobs import attempts, events, host_orders
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.status_rows import seconds_in, since
from clary.control.jobs.training_job import EndCause, TrainingJob

# From the cut of a link until the service knows it, in addition to the delay of frames: the watch's `CUT_OFF_AFTER_S`,
# and delays of the watch and of the next pass on a busy machine.
LINK_NOTICE_S = 2.0 + 3.0
# Share of host_timeout_s after which a silent host is lost if a peer has failed as if this host were gone.
WITNESSED_SHARE = 1 / 3
LEAST_SILENCE_S = 3.0  # three intervals of reports


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the service, in seconds."""

    stop_grace_s: float
    host_timeout_s: float
    launch_timeout_s: float
    upload_timeout_s: float


def due(
    job: TrainingJob,
    *,
    now: datetime,
    limits: Limits,
    silent_s: Mapping[str, float],
    last_signs: Mapping[str, datetime] | None = None,
    served_s: float = math.inf,
) -> events.Event | None:
    """Return the event that is due, or None.

    Args:
        job: present record of the job.
        now: aware UTC time.
        limits: limits of the service.
        silent_s: host name to the seconds since its agent's last report; without a report, since its launch. A service
            that has just started counts from its own start, because no service received heartbeats before. The seconds
            are measured by a monotonic clock: a change of the wall clock must not lose every host.
        last_signs: host name to the last time when the host certainly worked, used to find the first cause.
        served_s: seconds for which this service has received requests. An agent could not report while there was none.
    """
    if job.is_terminal:
        return None
    return (
        _stop_due(job, now, limits)
        or _silent_host(job, limits, silent_s, last_signs or {})
        or _stop_overdue(job, now, limits, served_s)
        or _upload_due(job, now, limits, served_s)
        or _evidence_due(job, now, limits)
    )


def evidence_wait_s(job: TrainingJob, limits: Limits) -> float:
    """Return the longest time until a dead host or a cut link is noticed."""
    hosts = (job.plan or {}).get("hosts", ())
    delays_ms = [host.get("resources", {}).get("link", {}).get("delay_ms", 0.0) for host in hosts]
    return max(limits.host_timeout_s, LINK_NOTICE_S + max(delays_ms, default=0.0) / 1000)


def can_expire_waiting(job: TrainingJob) -> bool:
    """Whether a time limit may end a job while it waits for hosts; most jobs wait without a limit."""
    request = JobRequest(job.request)
    return request.max_wait_s is not None or request.max_pending_s is not None


def _stop_due(job: TrainingJob, now: datetime, limits: Limits) -> events.Event | None:
    if job.end_cause is not None:
        return None
    request = JobRequest(job.request)
    has_trained = since(job.transitions, SecondaryStatus.TRAINING) is not None
    training_s = seconds_in(job.transitions, SecondaryStatus.TRAINING, now=now)
    age_s = (now - job.created_at).total_seconds()
    cause = None
    if has_trained and training_s >= request.max_runtime_s:
        cause = EndCause.MAX_RUNTIME
    elif request.max_wait_s is not None and age_s >= request.max_wait_s:
        cause = EndCause.MAX_WAIT
    elif request.max_pending_s is not None and not (job.hosts or job.past_attempts) and age_s >= request.max_pending_s:
        cause = EndCause.MAX_PENDING
    return None if cause is None else events.StopWanted(cause=cause, grace_s=limits.stop_grace_s)


def _silent_host(
    job: TrainingJob, limits: Limits, silent_s: Mapping[str, float], last_signs: Mapping[str, datetime]
) -> events.Event | None:
    for name, record in job.hosts.items():
        phase = record.facts.phase
        if phase in (HostPhase.LOST, HostPhase.RELEASED, HostPhase.DONE):
            continue
        silence_s = silent_s.get(name, 0.0)
        if phase is HostPhase.LAUNCHING:
            if silence_s >= limits.launch_timeout_s:
                why = f"the agent of {name} did not report within {limits.launch_timeout_s:.0f} s of its launch"
                return events.HostLost(host=name, why=f"{why}; see agent.log in its work folder")
        elif silence_s >= (limit_s := _silence_limit_s(job, limits)):
            share = "" if limit_s == limits.host_timeout_s else "less after its peer's failure; "
            limit = f"limit {limit_s:g} s, {share}setting host_timeout_s"
            why = f"{name} was lost: its agent has been silent for {silence_s:.1f} s ({limit})"
            return events.HostLost(host=name, why=why, last_sign_at=last_signs.get(name))
    return None


def _silence_limit_s(job: TrainingJob, limits: Limits) -> float:
    """Return the silence after which a host is lost: shorter if a peer failed as if this host were gone.

    Such an attempt has failed already, and the long limit only serves to survive network trouble while a program runs.
    The limit is not shortened if another host is lost already, because that loss explains the failure.
    """
    failure, records = job.failure, job.hosts.values()
    is_explained = any(record.facts.phase is HostPhase.LOST for record in records)
    if job.end_cause is not EndCause.FAILURE or failure is None or not failure.may_be_answer or is_explained:
        return limits.host_timeout_s
    return min(limits.host_timeout_s, max(LEAST_SILENCE_S, WITNESSED_SHARE * limits.host_timeout_s))


def _stop_overdue(job: TrainingJob, now: datetime, limits: Limits, served_s: float) -> events.Event | None:
    """Return a HostLost event if a living agent does not end its program, so that the job can end."""
    if job.stop_ordered_at is None:
        return None
    limit_s = limits.stop_grace_s + STOP_ALLOWANCE_S
    if min((now - job.stop_ordered_at).total_seconds(), served_s) < limit_s:
        return None
    for name, record in job.hosts.items():
        if record.facts.phase.may_run:
            why = f"{name} was lost: its program did not end within {limit_s:.0f} s of the order to stop"
            return events.HostLost(host=name, why=why)
    return None


def _upload_due(job: TrainingJob, now: datetime, limits: Limits, served_s: float) -> events.Event | None:
    began_at = since(job.transitions, SecondaryStatus.UPLOADING)
    if began_at is None or job.ending is not None or not host_orders.is_uploading(job):
        return None
    is_due = min((now - began_at).total_seconds(), served_s) >= limits.upload_timeout_s
    return events.UploadOverdue(limit_s=limits.upload_timeout_s) if is_due else None


def _evidence_due(job: TrainingJob, now: datetime, limits: Limits) -> events.Event | None:
    """Return a NoMoreEvidence event if a host or link that failed first would have been noticed by now."""
    if job.failed_at is None or not attempts.awaits_evidence(job):
        return None
    waited_s = (now - job.failed_at).total_seconds()
    is_open = 0 <= waited_s < evidence_wait_s(job, limits)  # a clock that was set back must not hold a job up
    return None if is_open else events.NoMoreEvidence()
