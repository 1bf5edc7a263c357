"""Answers to requests about tuning jobs, made from their records. Pure.

Source: DescribeHyperParameterTuningJobResponse, HyperParameterTuningJobSummary, HyperParameterTrainingJobSummary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs.members.image_metrics import with_metrics
from clary.control.jobs.members.told_defaults import MAX_RUNTIME_S
from clary.control.jobs.training_job import TrainingJob
from clary.control.tuning.completion import max_trials
from clary.control.tuning.standing import best_of, num_not_improving, objective_counters, status_counters
from clary.control.tuning.trial_requests import resources_of
from clary.control.tuning.tuning_job import Trial, TuningJob, TuningStatus
from clary.control.tuning.tuning_request import OBJECTIVE_KEY, TuningRequest
from clary.control.wire.fitting import fit

DESCRIPTION_SHAPE = "DescribeHyperParameterTuningJobResponse"
_RANGE_LISTS = ("IntegerParameterRanges", "ContinuousParameterRanges", "CategoricalParameterRanges")
_SAME_MEMBERS = (
    "HyperParameterTuningJobName",
    "HyperParameterTuningJobConfig",
    "TrainingJobDefinition",
    "TrainingJobDefinitions",
    "WarmStartConfig",
    "Autotune",
)


def describe_tuning_job(
    job: TuningJob, trials: Sequence[Trial], live: Mapping[str, TrainingJob], *, parents_best: Trial | None
) -> dict[str, Any]:
    """Return the members of DescribeHyperParameterTuningJob.

    Args:
        job: record of the tuning job.
        trials: trials of the tuning job.
        live: name -> training job of an unfinished trial.
        parents_best: best trial of the parents of a warm start with identical data and algorithm; None without parents.
    """
    request = TuningRequest(job.request)
    objective = request.objective
    best = best_of(trials, objective)
    description: dict[str, Any] = {
        **fit(DESCRIPTION_SHAPE, _told_request(request)).document,
        "HyperParameterTuningJobArn": job.arn,
        **_status(job, trials),
        "BestTrainingJob": None if best is None else trial_summary(job, best, live.get(best.job_name)),
        "FailureReason": job.end_reason if job.status is TuningStatus.FAILED else None,
        "TuningJobCompletionDetails": {
            "NumberOfTrainingJobsObjectiveNotImproving": num_not_improving(trials, objective),
            **({} if job.converged_at is None else {"ConvergenceDetectedTime": job.converged_at}),
        },
        "ConsumedResources": {
            "RuntimeInSeconds": sum(trial.outcome.runtime_s for trial in trials if trial.outcome is not None)
        },
    }
    if request.is_identical_to_parents:
        overall = best_of([one for one in (best, parents_best) if one is not None], objective)
        if best is not None and parents_best is not None and best.value is not None and parents_best.value is not None:
            overall = best if objective.is_better(best.value, parents_best.value) else parents_best
        description["OverallBestTrainingJob"] = None if overall is None else trial_summary(job, overall, None)
    return {name: value for name, value in description.items() if value is not None}


def _told_request(request: TuningRequest) -> dict[str, Any]:
    """Return the request's members for the answer, and further ones that the SDK's `HyperparameterTuner.attach` reads.

    These are the hyperparameter that the service adds, the metrics of an image that has its own, a ResourceConfig,
    which is present even if the request describes its hosts in other members, all lists of ranges, and documented
    defaults.
    """
    told = {name: request.request[name] for name in _SAME_MEMBERS if name in request.request}
    told["HyperParameterTuningJobConfig"] = _told_config(request)
    definitions = [
        {
            **one.definition,
            **_told_ranges(one.definition, "HyperParameterRanges"),
            "ResourceConfig": resources_of(one)[0],
            "StoppingCondition": {
                "MaxRuntimeInSeconds": MAX_RUNTIME_S,
                **(one.definition.get("StoppingCondition") or {}),
            },
            **_told_metrics(one.definition),
            "StaticHyperParameters": {
                **(one.definition.get("StaticHyperParameters") or {}),
                OBJECTIVE_KEY: one.objective.metric,
            },
        }
        for one in request.definitions
    ]
    if "TrainingJobDefinition" in told:
        told["TrainingJobDefinition"] = definitions[0]
    if "TrainingJobDefinitions" in told:
        told["TrainingJobDefinitions"] = definitions
    return told


def _told_config(request: TuningRequest) -> dict[str, Any]:
    """Return HyperParameterTuningJobConfig with defaults; a grid's number of training jobs is that of its points."""
    most = max_trials(request)
    limits = request.config["ResourceLimits"]
    return {
        "TrainingJobEarlyStoppingType": "Auto" if request.stops_early else "Off",
        **request.config,
        **_told_ranges(request.config, "ParameterRanges"),
        "ResourceLimits": limits if most is None else {**limits, "MaxNumberOfTrainingJobs": most},
    }


def _told_metrics(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the member, with the metrics of the image if it names no others; empty if the member is absent."""
    specification = definition.get("AlgorithmSpecification")
    return {} if specification is None else {"AlgorithmSpecification": with_metrics(specification)}


def _told_ranges(holder: Mapping[str, Any], member: str) -> dict[str, Any]:
    """Return the member with the ranges of each kind, of which a client may leave out some; nothing if it is absent."""
    ranges = holder.get(member)
    return {} if ranges is None else {member: {**{name: [] for name in _RANGE_LISTS}, **ranges}}


def tuning_summary(job: TuningJob, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return one row of ListHyperParameterTuningJobs.

    Args:
        job: record of the tuning job.
        trials: trials of the tuning job.
    """
    request = TuningRequest(job.request)
    return {
        "HyperParameterTuningJobName": job.name,
        "HyperParameterTuningJobArn": job.arn,
        "Strategy": request.strategy,
        "ResourceLimits": request.config["ResourceLimits"],
        **_status(job, trials),
    }


def trial_summary(job: TuningJob, trial: Trial, live: TrainingJob | None) -> dict[str, Any]:
    """Return one row of ListTrainingJobsForHyperParameterTuningJob.

    Args:
        job: tuning job of the trial, or the tuning job whose answer contains it.
        trial: record of the trial.
        live: the trial's training job, while it runs.
    """
    request = TuningRequest(job.request)
    summary: dict[str, Any] = {
        "TrainingJobName": trial.job_name,
        "TrainingJobArn": trial.job_arn,
        "CreationTime": trial.created_at,
        "TunedHyperParameters": dict(trial.parameters),
        "ObjectiveStatus": trial.objective_status.value,
        "TrainingJobStatus": trial_status(trial, live).value,
    }
    if trial.definition:
        summary["TrainingJobDefinitionName"] = trial.definition
    if trial.tuning_job != job.name:
        summary["TuningJobName"] = trial.tuning_job
    if trial.outcome is None:
        started_at = None if live is None else live.training_started_at
        return summary if started_at is None else {**summary, "TrainingStartTime": started_at}
    outcome = trial.outcome
    times = {"TrainingStartTime": outcome.training_started_at, "TrainingEndTime": outcome.training_ended_at}
    summary |= {member: at for member, at in times.items() if at is not None}
    if outcome.failure_reason:
        summary["FailureReason"] = outcome.failure_reason
    if outcome.value is not None:
        objective = request.objective_of(trial.definition)
        summary["FinalHyperParameterTuningJobObjectiveMetric"] = {
            "Type": "Maximize" if objective.is_maximized else "Minimize",
            "MetricName": objective.metric,
            "Value": outcome.value,
        }
    return summary


def trial_status(trial: Trial, live: TrainingJob | None) -> TrainingJobStatus:
    """Return the status of a trial's training job.

    Args:
        trial: record of the trial.
        live: the trial's training job, while it runs.
    """
    if trial.outcome is not None:
        return trial.outcome.status
    return TrainingJobStatus.IN_PROGRESS if live is None else live.status


def _status(job: TuningJob, trials: Sequence[Trial]) -> dict[str, Any]:
    times: dict[str, datetime] = {"CreationTime": job.created_at, "LastModifiedTime": job.modified_at}
    if job.ended_at is not None:
        times["HyperParameterTuningEndTime"] = job.ended_at
    return {
        "HyperParameterTuningJobStatus": job.status.value,
        **times,
        "TrainingJobStatusCounters": status_counters(trials),
        "ObjectiveStatusCounters": objective_counters(trials),
    }
