"""Consistency check of a stored job: verifies on every read the facts that all later code assumes. Pure.

Where: the store checks every job that it returns to a caller. A well-formed record can still be damaged: a missing
member of the request, an impossible time, an unreadable plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from clary.base.errors import ContractError
from clary.base.plain import from_plain
from clary.contract.launch_plan import LaunchPlan
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob

# Machines without a hardware clock start with a time in 1970 and keep it until their clock is set.
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
MAX_ATTEMPT = 2**31 - 1  # largest value of the database's column
REQUIRED = ("TrainingJobName", "RoleArn", "OutputDataConfig")  # members of every CreateTrainingJob
_READINGS = tuple(name for name, member in vars(JobRequest).items() if isinstance(member, property))


def complaint(job: TrainingJob) -> str:
    """Return a sentence on the fault of a stored job, or an empty text."""
    if not 0 <= job.attempt <= MAX_ATTEMPT:
        return f"attempt is {job.attempt}, expected 0 to {MAX_ATTEMPT}"
    for name, moment in _times(job):
        if not EARLIEST <= moment < LATEST:
            return f"{name} is {moment.isoformat()}, expected a time from {EARLIEST.year} to {LATEST.year}"
    request = JobRequest(job.request)
    missing = [member for member in REQUIRED if member not in job.request]
    if missing:
        return f"its request lacks {', '.join(missing)}"
    if job.request["TrainingJobName"] != job.name:
        return f"its request is that of job {job.request['TrainingJobName']!r}"
    for name in _READINGS:
        try:
            getattr(request, name)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ContractError) as error:
            return f"its request does not say {name}: {type(error).__name__}: {error}"
    if job.plan is not None and not job.is_released:  # a job that ended long ago may have an older release's plan
        try:
            from_plain(LaunchPlan, job.plan)
        except ContractError as error:
            return f"its launch plan is none: {error.message}"
    return ""


def _times(job: TrainingJob) -> Iterator[tuple[str, datetime]]:
    yield "created_at", job.created_at
    yield "modified_at", job.modified_at
    for row in job.transitions:
        yield "a transition's start", row.started_at
    for name in ("training_started_at", "training_ended_at", "failed_at", "stop_ordered_at", "not_before"):
        moment = getattr(job, name)
        if moment is not None:
            yield name, moment
