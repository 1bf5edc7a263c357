"""State of a job, one of seven, and its time in each state; all pages and commands show these. Pure.

Where: lists of jobs filter and count by it, `clary describe`, `clary jobs` and the console show it. AWS clients still
see SecondaryStatus; a state is coarser, and a job that waits for hosts is always Queued.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.training_job import TrainingJob


class JobState(StrEnum):
    """State of a job; the last three are terminal."""

    QUEUED = "Queued"  # it waits for hosts, at first or again
    STARTING = "Starting"  # it has hosts, which fetch code, environment and data
    RUNNING = "Running"  # its program runs, or its results are written
    STOPPING = "Stopping"  # its programs were signalled to stop
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"


# For jobs whose status is InProgress; the state of other jobs is named like their status.
SECONDARY_STATUSES: Mapping[JobState, tuple[SecondaryStatus, ...]] = {
    JobState.QUEUED: (SecondaryStatus.PENDING, SecondaryStatus.INTERRUPTED, SecondaryStatus.RESTARTING),
    JobState.STARTING: (SecondaryStatus.STARTING, SecondaryStatus.DOWNLOADING),
    JobState.RUNNING: (SecondaryStatus.TRAINING, SecondaryStatus.UPLOADING),
}
_STATES = {status: state for state, statuses in SECONDARY_STATUSES.items() for status in statuses}


@dataclass(frozen=True, kw_only=True)
class JobTimes:
    """Seconds that a job has spent in each state, and the times of its start and end."""

    queued_s: float  # total time without hosts
    starting_s: float
    running_s: float
    stopping_s: float
    started_at: datetime | None  # when its first host began to download: TrainingStartTime
    ended_at: datetime | None
    took_s: float | None  # from start to end, or to now; None before the start


def state_of(status: str, secondary: str) -> JobState:
    """Return the state of a job with these statuses."""
    if status != TrainingJobStatus.IN_PROGRESS:
        return JobState(status)
    return _STATES.get(SecondaryStatus(secondary), JobState.STOPPING)


def job_state(job: TrainingJob) -> JobState:
    """Return the state of a job; until hosts are requested for the first time, a job is queued."""
    if job.status is TrainingJobStatus.IN_PROGRESS and job.attempt == 0:
        return JobState.QUEUED
    return state_of(job.status, job.secondary_status)


def job_state_row(job: TrainingJob) -> dict[str, Any]:
    """Return name, statuses, state and failure of a job as plain data, for pages and for clients that poll."""
    return {
        "name": job.name,
        "status": job.status.value,
        "secondary_status": job.secondary_status.value,
        "state": job_state(job).value,
        "failure_reason": "" if job.failure is None else job.failure.reason,
    }


def job_times(job: TrainingJob, *, now: datetime) -> JobTimes:
    """Add up a job's time.

    Args:
        job: record of the job.
        now: end of the counted time of a job that has not ended.
    """
    spent = dict.fromkeys(JobState, timedelta())
    for index, row in enumerate(job.transitions):
        state = _STATES.get(row.status, JobState.STOPPING)
        is_queue = row.status is SecondaryStatus.STARTING and is_of_queue(job, index)
        end = row.ended_at or (row.started_at if job.is_terminal else now)
        spent[JobState.QUEUED if is_queue else state] += max(timedelta(), end - row.started_at)
    ended_at = job.training_ended_at or (job.modified_at if job.is_terminal else None)
    took = None
    if job.training_started_at is not None:
        took = max(0.0, ((ended_at or now) - job.training_started_at).total_seconds())
    return JobTimes(
        queued_s=spent[JobState.QUEUED].total_seconds(),
        starting_s=spent[JobState.STARTING].total_seconds(),
        running_s=spent[JobState.RUNNING].total_seconds(),
        stopping_s=spent[JobState.STOPPING].total_seconds(),
        started_at=job.training_started_at,
        ended_at=ended_at,
        took_s=took,
    )


def is_of_queue(job: TrainingJob, index: int) -> bool:
    """Whether a row Starting dates from a time when no hosts had been requested for the job yet."""
    if job.attempt == 0:
        return True
    return index + 1 < len(job.transitions) and job.transitions[index + 1].status is SecondaryStatus.PENDING
