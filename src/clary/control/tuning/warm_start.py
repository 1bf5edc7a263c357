"""Warm start: trials of earlier tuning jobs with which a new tuning job begins. Pure.

Where: services read the parents when a tuning job is created; the search receives their trials before the job's own.
Source: HyperParameterTuningJobWarmStartConfig (AWS API reference); "Run a Warm Start Hyperparameter Tuning Job".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clary.contract.settings.hyperparameters import PLATFORM_PREFIX
from clary.control.tuning.parameter_space import Categorical, Range
from clary.control.tuning.search import Observation
from clary.control.tuning.tuning_job import Trial, TuningJob
from clary.control.tuning.tuning_request import OBJECTIVE_KEY, Definition, TuningRequest

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
    counts = [len(_names(one)) for one in (own, other)]
    if counts[0] != counts[1]:
        return (
            "With IdenticalDataAndAlgorithm the number of static plus tunable hyperparameters has to be that of "
            f"{parent.name}, {counts[1]}; it is {counts[0]}."
        )
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


def observations_of(trials: Sequence[Trial], definition: Definition, parent: TuningJob) -> tuple[Observation, ...]:
    """Return the observations of trials that have an objective and whose hyperparameters fit a definition's ranges.

    A hyperparameter that the parent did not tune has the parent's static value. If a hyperparameter is
    no longer tuned, its value is left out; but if it was categorical, only trials with the present static value count.

    Args:
        trials: all trials of the parent.
        definition: a definition of the child.
        parent: the earlier tuning job.
    """
    before = TuningRequest(parent.request).definitions[0]
    static = before.definition.get("StaticHyperParameters") or {}
    fixed = definition.definition.get("StaticHyperParameters") or {}
    choices = {one.name: one for one in before.space if isinstance(one, Categorical) and one.name in fixed}
    found = []
    for trial in sorted(trials, key=lambda one: one.number)[-MAX_PARENT_TRIALS:]:
        if trial.value is None:
            continue
        given = {**static, **trial.parameters}
        if any(_text_in(one, fixed[name]) != given.get(name) for name, one in choices.items()):
            continue
        texts = {one.name: _text_in(one, given.get(one.name)) for one in definition.space}
        parameters = {name: text for name, text in texts.items() if text is not None}
        if len(parameters) == len(texts):
            found.append(Observation(parameters=parameters, value=trial.value, is_over=True))
    return tuple(found)


def _names(definition: Definition) -> set[str]:
    """Return the names of static and tunable hyperparameters, without those of the platform and of the service."""
    static = definition.definition.get("StaticHyperParameters") or {}
    names = {*static, *(one.name for one in definition.space)} - {OBJECTIVE_KEY}
    return {name for name in names if not name.startswith(PLATFORM_PREFIX)}


def _text_in(one: Range, text: str | None) -> str | None:
    """Return a text as the range has it, None if it is not in the range; SDKs put some texts in quotes, some not."""
    if text is None:
        return None
    plain = text.strip('"')
    return next((each for each in (text, plain, f'"{plain}"') if one.value(each) is not None), None)
