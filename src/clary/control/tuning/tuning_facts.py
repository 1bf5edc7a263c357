"""Facts of a tuning job for its pages: limits, end conditions, best trial, best objective over time. Pure.

Where: `server.pages.tuning_page`, which adds statuses and curves of running training jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clary.base.plain import to_plain
from clary.control.tuning.completion import max_trials
from clary.control.tuning.configurations import rungs_of
from clary.control.tuning.parameter_space import Categorical, Integer, Range
from clary.control.tuning.standing import best_of, in_order_of_ends, status_counters
from clary.control.tuning.tuning_job import Trial, TuningJob
from clary.control.tuning.tuning_request import Definition, Objective, TuningRequest

MS_PER_S = 1000


def row_of(job: TuningJob, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return one row of the list of tuning jobs.

    Args:
        job: the record.
        trials: all trials of the job.
    """
    request = TuningRequest(job.request)
    objective = request.objective
    best = best_of(trials, objective)
    return {
        "name": job.name,
        "status": job.status.value,
        "strategy": request.strategy,
        "objective": {"metric": objective.metric, "is_maximized": objective.is_maximized},
        "counters": status_counters(trials),
        "num_trials": len(trials),
        "max_trials": max_trials(request),
        "best": None
        if best is None
        else {
            "number": best.number,
            "job": best.job_name,
            "value": best.value,
            "parameters": dict(best.parameters),
        },
        "created_at": to_plain(job.created_at),
        "ended_at": to_plain(job.ended_at),
        "end_reason": job.end_reason,
    }


def facts_of(job: TuningJob, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the facts of a tuning job that do not depend on running training jobs.

    Args:
        job: the record.
        trials: all trials of the job.
    """
    request = TuningRequest(job.request)
    rungs = rungs_of(request, request.definitions[0])
    return {
        **row_of(job, trials),
        "arn": job.arn,
        "limits": {
            "max_jobs": request.max_jobs,
            "max_parallel": request.max_parallel,
            "max_runtime_s": request.max_runtime_s,
            "target_value": request.target_value,
            "max_not_improving": request.max_not_improving,
            "ends_on_convergence": request.ends_on_convergence,
        },
        "ends": end_words(request),
        "stops_early": request.stops_early,
        "resources": {"least": rungs.least, "most": rungs.most} if request.strategy == "Hyperband" else None,
        "seed": job.seed,
        "parents": list(request.parents),
        "converged_at": to_plain(job.converged_at),
        "definitions": [_definition(one) for one in request.definitions],
        "best_so_far": best_so_far(trials, request.objective),
    }


def end_words(request: TuningRequest) -> list[str]:
    """Return the conditions that end a tuning job, whichever is met first."""
    metric = request.objective.metric
    most = max_trials(request)
    words = []
    if most is not None:
        whole = request.strategy == "Grid"
        words.append(f"after all {most} combinations" if whole else f"after {most} training jobs")
    if request.max_runtime_s is not None:
        words.append(f"after {request.max_runtime_s} s")
    if request.target_value is not None:
        words.append(f"when {metric} reaches {request.target_value:g}")
    if request.max_not_improving is not None:
        words.append(f"after {request.max_not_improving} training jobs in a row without a better {metric}")
    if request.ends_on_convergence:
        words.append(f"when {metric} has converged")
    return words


def best_so_far(trials: Sequence[Trial], objective: Objective) -> list[list[float]]:
    """Return [number of the trial, its end in Unix milliseconds, best value so far], in the order of ends.

    Args:
        trials: all trials of a tuning job; trials without an objective are left out.
        objective: the objective; decides which values are better.
    """
    course: list[list[float]] = []
    best: float | None = None
    for trial in in_order_of_ends(trials):
        assert trial.outcome is not None, "only ended trials"
        assert trial.value is not None, "only trials with an objective"
        if best is None or objective.is_better(trial.value, best):
            best = trial.value
        ended_at = trial.outcome.training_ended_at or trial.created_at
        course.append([trial.number, round(ended_at.timestamp() * MS_PER_S), best])
    return course


def few(values: Sequence[float], most: int) -> list[float]:
    """Return evenly spaced values of a curve, including the first and the last.

    Args:
        values: in order.
        most: largest number of values; at least 2.
    """
    if len(values) <= most:
        return list(values)
    last = len(values) - 1
    return [values[round(index * last / (most - 1))] for index in range(most)]


def _definition(definition: Definition) -> dict[str, Any]:
    static = definition.definition.get("StaticHyperParameters") or {}
    return {
        "name": definition.name,
        "hyperparameters": dict(static),
        "ranges": [_range(one) for one in definition.space],
    }


def _range(one: Range) -> dict[str, Any]:
    if isinstance(one, Categorical):
        return {"name": one.name, "kind": "categorical", "values": list(one.values)}
    return {
        "name": one.name,
        "kind": "integer" if isinstance(one, Integer) else "continuous",
        "least": one.least,
        "greatest": one.greatest,
        "scaling": one.scaling.value,
    }
