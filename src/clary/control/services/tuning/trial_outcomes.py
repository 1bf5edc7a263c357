"""The outcome of a trial, from its training job and the values that the job has reported.

Where: `tuning_keeper` stores it when the training job has ended.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Services
from clary.control.tuning.tuning_job import Trial, TrialOutcome, TuningJob
from clary.control.tuning.tuning_request import TuningRequest

MOST_VALUES = 1000  # maximum number of values in a trial's curve
EVER_FROM, EVER_TO = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)  # hosts' clocks may be wrong


async def outcome_of(services: Services, job: TuningJob, trial: Trial, training: TrainingJob) -> TrialOutcome:
    """Return the outcome of a trial.

    Args:
        services: parts of the service.
        job: tuning job of the trial.
        trial: record of the trial.
        training: the trial's training job, which has ended.
    """
    metric = TuningRequest(job.request).definition(trial.definition).objective.metric
    value = next((one.value for one in training.final_metrics if one.name == metric), None)
    started_at, ended_at = training.training_started_at, training.training_ended_at
    runtime_s = 0 if started_at is None or ended_at is None else max(1, round((ended_at - started_at).total_seconds()))
    has_failed = training.status is TrainingJobStatus.FAILED
    failure = training.failure if has_failed else None
    # A failed program has left no model, so its values cannot be the best.
    is_known = value is not None and math.isfinite(value) and not has_failed
    return TrialOutcome(
        status=training.status,
        value=value if is_known else None,
        curve=await curve_of(services, training, metric),
        training_started_at=started_at,
        training_ended_at=ended_at or training.modified_at,
        failure_reason="" if failure is None else failure.reason,
        is_retryable=failure is not None and failure.is_retryable,
        runtime_s=runtime_s,
    )


async def curve_of(
    services: Services, training: TrainingJob, metric: str, *, is_live: bool = False
) -> tuple[float, ...]:
    """Return the finite values of the objective that a training job has reported, in order; the first `MOST_VALUES`.

    Args:
        services: parts of the service.
        training: record of the training job.
        metric: name of the objective.
        is_live: whether the training job still runs.
    """
    if is_live and not any(one.name == metric for one in training.final_metrics):
        return ()
    values = await services.store.query_metrics(training.name, metric, EVER_FROM, EVER_TO)
    return tuple(one.value for one in values if one.value is not None and math.isfinite(one.value))[:MOST_VALUES]
