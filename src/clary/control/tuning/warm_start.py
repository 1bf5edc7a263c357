"""Warm start: trials of earlier tuning jobs with which a new tuning job begins. Pure.

Where: services read the parents when a tuning job is created; the search receives their trials before the job's own.
Source: HyperParameterTuningJobWarmStartConfig (AWS API reference); "Run a Warm Start Hyperparameter Tuning Job".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clary.control.tuning.search import Observation
from clary.control.tuning.tuning_job import Trial, TuningJob
from clary.control.tuning.tuning_request import Definition, TuningRequest

MAX_PARENT_TRIALS = 500  # maximum number of trials taken from each parent; the newest are taken


def why_not_parent(child: TuningRequest, parent: TuningJob) -> str:
    """Return the reason why a tuning job cannot be a parent of another; empty if it can.

    Args:
        child: tuning job that would begin with the parent's trials.
        parent: the earlier tuning job.
    """
    if not parent.is_terminal:
        return (
            f"Parent hyperparameter tuning job {parent.name} is in status {parent.status.value}; it has to have ended."
        )
    before = TuningRequest(parent.request)
    if len(before.definitions) != 1 or len(child.definitions) != 1:
        return "A warm start needs one TrainingJobDefinition, in the parents too."
    own, other = child.definitions[0], before.definitions[0]
    if own.objective != other.objective:
        return f"Parent hyperparameter tuning job {parent.name} has another objective: {other.objective.metric}."
    if not child.is_identical_to_parents:
        return ""
    tuned = {one.name for one in own.space}
    if tuned != {one.name for one in other.space}:
        return f"With IdenticalDataAndAlgorithm the tuned hyperparameters have to be those of {parent.name}."
    images = [one.definition["AlgorithmSpecification"].get("TrainingImage") for one in (own, other)]
    if images[0] != images[1]:
        return f"With IdenticalDataAndAlgorithm the image has to be that of {parent.name}: {images[1]}."
    return ""


def with_metrics_of(definition: Mapping[str, Any], parent: TuningJob) -> dict[str, Any] | None:
    """Return a definition with the metrics of a parent; None for a parent without metrics.

    Args:
        definition: a definition of the child, without metrics.
        parent: the earlier tuning job.
    """
    for one in TuningRequest(parent.request).definitions:
        metrics = one.definition["AlgorithmSpecification"].get("MetricDefinitions")
        if metrics:
            specification = {**definition["AlgorithmSpecification"], "MetricDefinitions": metrics}
            return {**definition, "AlgorithmSpecification": specification}
    return None


def observations_of(trials: Sequence[Trial], definition: Definition) -> tuple[Observation, ...]:
    """Return the observations of trials that have an objective and whose hyperparameters fit a definition's ranges.

    Args:
        trials: all trials of a parent.
        definition: a definition of the child.
    """
    names = {one.name for one in definition.space}
    found = []
    for trial in sorted(trials, key=lambda one: one.number)[-MAX_PARENT_TRIALS:]:
        if trial.value is None or not names <= set(trial.parameters):
            continue
        if all(one.value(trial.parameters[one.name]) is not None for one in definition.space):
            parameters = {name: trial.parameters[name] for name in names}
            found.append(Observation(parameters=parameters, value=trial.value, is_over=True))
    return tuple(found)
