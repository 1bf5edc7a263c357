"""SecondaryStatusTransitions: ends and beginnings of rows, and their messages. Pure.

Source: SecondaryStatusTransition in the AWS API reference; the sentences are the same as for SageMaker's jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from clary.contract.statuses import SecondaryStatus
from clary.control.jobs.training_job import StatusTransition, TrainingJob

MESSAGES = {
    SecondaryStatus.STARTING: "Starting the training job",
    SecondaryStatus.DOWNLOADING: "Downloading input data",
    SecondaryStatus.TRAINING: "Training image download completed. Training in progress.",
    SecondaryStatus.UPLOADING: "Uploading generated training model",
    SecondaryStatus.STOPPING: "Stopping the training job",
    SecondaryStatus.COMPLETED: "Training job completed",
    SecondaryStatus.FAILED: "Training job failed",
    SecondaryStatus.STOPPED: "Training job stopped",
    SecondaryStatus.MAX_RUNTIME_EXCEEDED: "Training job runtime exceeded MaxRuntimeInSeconds provided",
    SecondaryStatus.MAX_WAIT_TIME_EXCEEDED: "Training job wait time exceeded MaxWaitTimeInSeconds provided",
}
PREPARING_HOSTS_MESSAGE = "Preparing the instances for training"


def enter(job: TrainingJob, secondary: SecondaryStatus, message: str, *, now: datetime) -> TrainingJob:
    """Close the current transition and open the next; a repeated status only renews its message.

    Args:
        job: record of the job.
        secondary: the status to enter.
        message: StatusMessage of the transition.
        now: current time by the job's clock.
    """
    rows = list(job.transitions)
    if rows and rows[-1].status is secondary:
        rows[-1] = replace(rows[-1], message=message)
    else:
        if rows:
            rows[-1] = replace(rows[-1], ended_at=now)
        rows.append(StatusTransition(status=secondary, started_at=now, message=message))
    return replace(job, secondary_status=secondary, transitions=tuple(rows), modified_at=now)


def seconds_in(rows: Sequence[StatusTransition], status: SecondaryStatus, *, now: datetime) -> float:
    """Return the total seconds of a job in a status; a transition that has not ended lasts until `now`.

    Args:
        rows: transitions of a job.
        status: a status that may occur in several rows.
        now: end of a transition that has not ended.
    """
    return sum(((row.ended_at or now) - row.started_at).total_seconds() for row in rows if row.status is status)


def since(rows: Sequence[StatusTransition], status: SecondaryStatus) -> datetime | None:
    """Return when a job last entered a status; None if it never did."""
    return next((row.started_at for row in reversed(rows) if row.status is status), None)
