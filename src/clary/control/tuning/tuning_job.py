"""The records of a tuning job and of its trials.

Where: services create them from a parsed request, the store keeps each as one JSON document. A trial is stored in the
transaction that stores its training job, so that neither exists without the other.
Source: DescribeHyperParameterTuningJob, HyperParameterTrainingJobSummary (AWS API reference).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from clary.base.clock import Clock, ClockAnchor
from clary.contract.statuses import TrainingJobStatus


class TuningStatus(StrEnum):
    """HyperParameterTuningJobStatus."""

    IN_PROGRESS = "InProgress"
    STOPPING = "Stopping"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    FAILED = "Failed"

    @property
    def is_terminal(self) -> bool:
        """Whether the status cannot change any more."""
        return self not in (TuningStatus.IN_PROGRESS, TuningStatus.STOPPING)


class ObjectiveStatus(StrEnum):
    """ObjectiveStatus of a trial."""

    SUCCEEDED = "Succeeded"
    PENDING = "Pending"
    FAILED = "Failed"


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """The end of a trial."""

    status: TrainingJobStatus  # status of its training job
    value: float | None  # value of the objective; None if the job reported no value
    curve: tuple[float, ...] = ()  # first values of the objective, in the order of arrival
    training_started_at: datetime | None = None
    training_ended_at: datetime | None = None
    failure_reason: str = ""
    is_retryable: bool = False  # whether the failure has a cause other than the program
    runtime_s: int = 0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training job of a tuning job."""

    tuning_job: str  # name
    number: int  # from 1, in the order of proposals
    job_name: str
    job_arn: str
    definition: str  # name of the training job definition; empty for a single unnamed definition
    parameters: Mapping[str, str]  # tuned hyperparameters, as the training job gets them
    created_at: datetime
    continues: int = 0  # number of the trial whose configuration it continues from checkpoints; 0 for a new one
    stop_reason: str = ""  # reason why the tuning job ended it early
    outcome: TrialOutcome | None = None

    @property
    def is_over(self) -> bool:
        """Whether its training job has ended."""
        return self.outcome is not None

    @property
    def value(self) -> float | None:
        """The objective; None while it is unknown, or if no value was reported."""
        return None if self.outcome is None else self.outcome.value

    @property
    def objective_status(self) -> ObjectiveStatus:
        """ObjectiveStatus."""
        if self.outcome is None:
            return ObjectiveStatus.PENDING
        return ObjectiveStatus.FAILED if self.outcome.value is None else ObjectiveStatus.SUCCEEDED


@dataclass(frozen=True, kw_only=True)
class TuningJob:
    """One tuning job from its creation to its end; immutable."""

    name: str
    arn: str
    request: Mapping[str, Any]  # CreateHyperParameterTuningJob as parsed, without Tags
    status: TuningStatus
    created_at: datetime
    modified_at: datetime
    anchor: ClockAnchor | None = None  # keeps the job's times independent of the wall clock
    seed: int  # seed of all proposals: RandomSeed, or a random number
    ended_at: datetime | None = None
    ends_as: TuningStatus | None = None  # status that follows once all training jobs have ended
    stops_running: bool = False  # whether running training jobs are stopped
    end_reason: str = ""  # reason of its end; FailureReason after a failure
    converged_at: datetime | None = None
    unknown_members: tuple[str, ...] = ()  # paths of members that this release does not know

    def now(self, clock: Clock) -> datetime:
        """Return the present time by the job's own clock: a change of the wall clock does not shorten the run time."""
        return clock.now() if self.anchor is None else self.anchor.now(clock)

    @property
    def is_terminal(self) -> bool:
        """Whether the status cannot change any more."""
        return self.status.is_terminal
