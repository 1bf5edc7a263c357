"""Statuses of a training job, as the API spells them.

Source: DescribeTrainingJob, TrainingJobStatus and SecondaryStatus (AWS API reference).
"""

from __future__ import annotations

from clary.base.string_enum import StrEnum


class TrainingJobStatus(StrEnum):
    """Status of a job; Completed, Failed and Stopped are terminal and no later event changes them."""

    IN_PROGRESS = "InProgress"
    STOPPING = "Stopping"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"

    @property
    def is_terminal(self) -> bool:
        """Whether no later event can change this status."""
        return self in (TrainingJobStatus.COMPLETED, TrainingJobStatus.FAILED, TrainingJobStatus.STOPPED)


class WarmPoolStatus(StrEnum):
    """State of the hosts of a job with a warm pool.

    Source: WarmPoolStatus in the AWS API reference.
    """

    IN_USE = "InUse"  # the job runs on the hosts
    AVAILABLE = "Available"  # the job has ended; its hosts wait for a matching job
    REUSED = "Reused"  # a matching job uses the hosts
    TERMINATED = "Terminated"  # the hosts were released


class RuleStatus(StrEnum):
    """State of a rule's evaluation.

    Source: RuleEvaluationStatus in the AWS API reference.
    """

    IN_PROGRESS = "InProgress"
    NO_ISSUES_FOUND = "NoIssuesFound"  # the rule has evaluated all data
    ISSUES_FOUND = "IssuesFound"
    ERROR = "Error"  # the evaluation failed; the job is not affected
    STOPPING = "Stopping"
    STOPPED = "Stopped"  # the evaluation was ended before it had read all data


class SecondaryStatus(StrEnum):
    """The more detailed status that clients print while they wait."""

    PENDING = "Pending"  # waits for hosts
    STARTING = "Starting"  # hosts are being prepared
    DOWNLOADING = "Downloading"  # code, environment and File channels are fetched
    TRAINING = "Training"  # the program runs
    INTERRUPTED = "Interrupted"  # capacity was reclaimed; the job waits for new hosts
    RESTARTING = "Restarting"  # the attempt failed without a fault of the job; another attempt follows
    UPLOADING = "Uploading"  # model and output are written to S3
    STOPPING = "Stopping"  # programs were signalled to stop
    COMPLETED = "Completed"  # terminal
    FAILED = "Failed"  # terminal
    STOPPED = "Stopped"  # terminal
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"  # terminal
    MAX_WAIT_TIME_EXCEEDED = "MaxWaitTimeExceeded"  # terminal
