"""What is due for a job at a given moment. Pure.

Where: the reconciler asks on every pass and applies the event that comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from clary.contract.agent_protocol import HostPhase
from clary.contract.statuses import SecondaryStatus
from clary.control.jobs import events, host_orders
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import EndCause, TrainingJob


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the service, in seconds."""

    stop_grace_s: float
    host_timeout_s: float
    launch_timeout_s: float
    upload_timeout_s: float


def due(job: TrainingJob, *, now: datetime, limits: Limits, last_heard: Mapping[str, datetime]) -> events.Event | None:
    """Return the event that is due, or None.

    Args:
        job: the record as it stands.
        now: aware UTC time.
        limits: of the service.
        last_heard: host name to the time its agent was last heard; hosts never heard of are absent. A service that
            has just started passes its own start time for hosts of running jobs, so that silence is counted anew.
    """
    if job.is_terminal:
        return None
    return _stop_due(job, now, limits) or _silent_host(job, now, limits, last_heard) or _upload_due(job, now, limits)


def _stop_due(job: TrainingJob, now: datetime, limits: Limits) -> events.Event | None:
    if job.end_cause is not None:
        return None
    request = JobRequest(job.request)
    running_since = _since(job, SecondaryStatus.TRAINING)
    age_s = (now - job.created_at).total_seconds()
    cause = None
    if running_since is not None and (now - running_since).total_seconds() >= request.max_runtime_s:
        cause = EndCause.MAX_RUNTIME
    elif request.max_wait_s is not None and age_s >= request.max_wait_s:
        cause = EndCause.MAX_WAIT
    elif request.max_pending_s is not None and not job.hosts and age_s >= request.max_pending_s:
        cause = EndCause.MAX_PENDING
    return None if cause is None else events.StopWanted(cause=cause, grace_s=limits.stop_grace_s)


def _silent_host(
    job: TrainingJob, now: datetime, limits: Limits, last_heard: Mapping[str, datetime]
) -> events.Event | None:
    for name, record in job.hosts.items():
        phase = record.facts.phase
        if phase in (HostPhase.LOST, HostPhase.RELEASED, HostPhase.DONE):
            continue
        heard = last_heard.get(name)
        if heard is None:
            silent_s = (now - record.facts.phase_started_at).total_seconds()
            if silent_s >= limits.launch_timeout_s:
                why = f"the agent of {name} did not report within {limits.launch_timeout_s:.0f} s of its launch"
                return events.HostLost(host=name, why=f"{why}; see agent.log in its work folder")
        elif (silent_s := (now - heard).total_seconds()) >= limits.host_timeout_s:
            why = f"{name} was lost: its agent has been silent for {silent_s:.1f} s (limit {limits.host_timeout_s:g} s)"
            return events.HostLost(host=name, why=why)
    return None


def _upload_due(job: TrainingJob, now: datetime, limits: Limits) -> events.Event | None:
    since = _since(job, SecondaryStatus.UPLOADING)
    if since is None or not host_orders.is_uploading(job):
        return None
    is_due = (now - since).total_seconds() >= limits.upload_timeout_s
    return events.UploadOverdue(limit_s=limits.upload_timeout_s) if is_due else None


def _since(job: TrainingJob, status: SecondaryStatus) -> datetime | None:
    return next((row.started_at for row in job.transitions if row.status is status), None)
