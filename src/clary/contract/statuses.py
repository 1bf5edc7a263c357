"""Statuses of a training job, as the API spells them.

Source: DescribeTrainingJob, TrainingJobStatus and SecondaryStatus (AWS API reference).
"""

from __future__ import annotations

from clary.base.string_enum import StrEnum


class TrainingJobStatus(StrEnum):
    """Where a job stands; Completed, Failed and Stopped are terminal and absorb every later event."""

    IN_PROGRESS = "InProgress"
    STOPPING = "Stopping"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can change this status any more."""
        return self in (TrainingJobStatus.COMPLETED, TrainingJobStatus.FAILED, TrainingJobStatus.STOPPED)


class WarmPoolStatus(StrEnum):
    """Where the hosts of a job with a warm pool are.

    Source: WarmPoolStatus in the AWS API reference.
    """

    IN_USE = "InUse"  # the job runs on them
    AVAILABLE = "Available"  # the job has ended, they wait for a matching one
    REUSED = "Reused"  # a matching job has taken them
    TERMINATED = "Terminated"  # they are gone


class RuleStatus(StrEnum):
    """How the evaluation of a rule stands.

    Source: RuleEvaluationStatus in the AWS API reference.
    """

    IN_PROGRESS = "InProgress"
    NO_ISSUES_FOUND = "NoIssuesFound"  # has looked at everything there was
    ISSUES_FOUND = "IssuesFound"
    ERROR = "Error"  # could not go on; the job is none the worse for it
    STOPPING = "Stopping"
    STOPPED = "Stopped"  # ended before it had looked at everything


class SecondaryStatus(StrEnum):
    """The finer status that clients print while they wait."""

    PENDING = "Pending"  # waits for hosts
    STARTING = "Starting"  # hosts are being prepared
    DOWNLOADING = "Downloading"  # code, environment and File channels are fetched
    TRAINING = "Training"  # the program runs
    INTERRUPTED = "Interrupted"  # hosts were taken away; the job waits for new ones
    RESTARTING = "Restarting"  # it failed through no fault of its own; the job is tried again
    UPLOADING = "Uploading"  # model and output are written to S3
    STOPPING = "Stopping"  # programs were told to stop
    COMPLETED = "Completed"  # terminal
    FAILED = "Failed"  # terminal
    STOPPED = "Stopped"  # terminal
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"  # terminal
    MAX_WAIT_TIME_EXCEEDED = "MaxWaitTimeExceeded"  # terminal
