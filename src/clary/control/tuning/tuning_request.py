"""A typed view of a CreateHyperParameterTuningJob request. Pure.

Where: services, the search and the keeper read requests through it; the stored request stays as the client sent it.
Source: CreateHyperParameterTuningJob (AWS API reference).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clary.contract.settings.hyperparameters import PLATFORM_PREFIX
from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Space, scaling_of

MAXIMIZE = "Maximize"
OBJECTIVE_KEY = "_tuning_objective_metric"  # hyperparameter of each training job, added by the service
HINT_SPAN = 10.0  # AutoParameters: the range is a tenth of the hint to ten times the hint
INTEGER_HINT_SPAN = 4
# Static hyperparameters that Hyperband uses if MaxResource is missing (AWS API reference).
EPOCH_KEYS = ("epochs", "numepochs", "n-epochs", "n_epochs", "num_epochs")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The metric that is tuned."""

    metric: str
    is_maximized: bool

    def is_better(self, one: float, other: float) -> bool:
        """Whether a value is better than another."""
        return one > other if self.is_maximized else one < other


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One training job definition with its ranges."""

    name: str
    definition: Mapping[str, Any]
    objective: Objective
    space: Space

    @property
    def num_epochs(self) -> int | None:
        """Number of epochs in StaticHyperParameters; None if they lack it."""
        static = self.definition.get("StaticHyperParameters") or {}
        texts = (str(static[key]).strip('"') for key in EPOCH_KEYS if key in static)
        return next((int(text) for text in texts if text.isdecimal() and int(text) > 0), None)


@dataclass(frozen=True)
class TuningRequest:
    """Reads one parsed request.

    An absent optional member gives the service's default, or None or an empty value without a default. An absent
    required member raises KeyError.
    """

    request: Mapping[str, Any]

    @property
    def name(self) -> str:
        """HyperParameterTuningJobName."""
        return str(self.request["HyperParameterTuningJobName"])

    @property
    def config(self) -> Mapping[str, Any]:
        """HyperParameterTuningJobConfig."""
        found: Mapping[str, Any] = self.request["HyperParameterTuningJobConfig"]
        return found

    @property
    def is_autotuned(self) -> bool:
        """Whether Autotune is set: the service chooses ranges and defaults."""
        return bool(self.request.get("Autotune"))

    @property
    def strategy(self) -> str:
        """Strategy: Bayesian, Random, Grid or Hyperband."""
        return str(self.config["Strategy"])

    @property
    def max_jobs(self) -> int | None:
        """ResourceLimits.MaxNumberOfTrainingJobs; None without a bound."""
        value = self.config["ResourceLimits"].get("MaxNumberOfTrainingJobs")
        return None if value is None else int(value)

    @property
    def max_parallel(self) -> int:
        """ResourceLimits.MaxParallelTrainingJobs."""
        return int(self.config["ResourceLimits"]["MaxParallelTrainingJobs"])

    @property
    def max_runtime_s(self) -> int | None:
        """ResourceLimits.MaxRuntimeInSeconds."""
        value = self.config["ResourceLimits"].get("MaxRuntimeInSeconds")
        return None if value is None else int(value)

    @property
    def stops_early(self) -> bool:
        """Whether TrainingJobEarlyStoppingType is Auto; the default with Autotune, except for Hyperband."""
        default = "Auto" if self.is_autotuned and self.strategy != "Hyperband" else "Off"
        return bool(self.config.get("TrainingJobEarlyStoppingType", default) == "Auto")

    @property
    def random_seed(self) -> int | None:
        """RandomSeed."""
        value = self.config.get("RandomSeed")
        return None if value is None else int(value)

    @property
    def hyperband_resources(self) -> tuple[int, int | None]:
        """MinResource and MaxResource of Hyperband, in values of the objective; None without MaxResource."""
        found = (self.config.get("StrategyConfig") or {}).get("HyperbandStrategyConfig") or {}
        return int(found.get("MinResource", 1)), found.get("MaxResource")

    @property
    def criteria(self) -> Mapping[str, Any]:
        """TuningJobCompletionCriteria."""
        return self.config.get("TuningJobCompletionCriteria") or {}

    @property
    def target_value(self) -> float | None:
        """TargetObjectiveMetricValue."""
        value = self.criteria.get("TargetObjectiveMetricValue")
        return None if value is None else float(value)

    @property
    def max_not_improving(self) -> int | None:
        """BestObjectiveNotImproving.MaxNumberOfTrainingJobsNotImproving."""
        value = (self.criteria.get("BestObjectiveNotImproving") or {}).get("MaxNumberOfTrainingJobsNotImproving")
        return None if value is None else int(value)

    @property
    def ends_on_convergence(self) -> bool:
        """ConvergenceDetected.CompleteOnConvergence; the default with Autotune."""
        default = "Enabled" if self.is_autotuned else "Disabled"
        return bool((self.criteria.get("ConvergenceDetected") or {}).get("CompleteOnConvergence", default) == "Enabled")

    @property
    def parents(self) -> tuple[str, ...]:
        """Names of the tuning jobs of WarmStartConfig."""
        found = (self.request.get("WarmStartConfig") or {}).get("ParentHyperParameterTuningJobs") or ()
        return tuple(str(parent["HyperParameterTuningJobName"]) for parent in found)

    @property
    def is_identical_to_parents(self) -> bool:
        """Whether WarmStartType is IdenticalDataAndAlgorithm."""
        return bool((self.request.get("WarmStartConfig") or {}).get("WarmStartType") == "IdenticalDataAndAlgorithm")

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """Training job definitions with their objectives and ranges, in the order of the request."""
        if self.request.get("TrainingJobDefinition"):
            return (self._definition(self.request["TrainingJobDefinition"], is_only=True),)
        return tuple(self._definition(one, is_only=False) for one in self.request.get("TrainingJobDefinitions") or ())

    @property
    def objective(self) -> Objective:
        """The objective by which trials of all definitions are compared; its metric names those of all definitions."""
        objectives = [one.objective for one in self.definitions]
        metric = " / ".join(dict.fromkeys(one.metric for one in objectives))
        return Objective(metric=metric, is_maximized=objectives[0].is_maximized)

    def objective_of(self, definition_name: str) -> Objective:
        """Return the objective of a definition; of the first one for an unknown name, as a parent's trial may have."""
        definitions = self.definitions
        return next((one for one in definitions if one.name == definition_name), definitions[0]).objective

    def definition(self, name: str) -> Definition:
        """Return the definition with a name; raises StopIteration for an unknown name."""
        return next(one for one in self.definitions if one.name == name)

    def _definition(self, definition: Mapping[str, Any], *, is_only: bool) -> Definition:
        if is_only:
            objective = definition.get("TuningObjective") or self.config.get("HyperParameterTuningJobObjective")
            ranges = self.config.get("ParameterRanges") or definition.get("HyperParameterRanges")
        else:
            objective = definition.get("TuningObjective")
            ranges = definition.get("HyperParameterRanges")
        objective = objective or {}
        return Definition(
            name=str(definition.get("DefinitionName", "")),
            definition=definition,
            objective=Objective(
                metric=str(objective.get("MetricName", "")), is_maximized=objective.get("Type") == MAXIMIZE
            ),
            space=space_of(ranges or {}),
        )


def space_of(ranges: Mapping[str, Any]) -> Space:
    """Return the ranges of a request, grouped by kind. Raises: ValueError for a bound that is not a number."""
    found: list[Continuous | Integer | Categorical] = []
    for one in _listed(ranges, "ContinuousParameterRanges"):
        least, greatest = float(one["MinValue"]), float(one["MaxValue"])
        scaling = scaling_of(one.get("ScalingType", ""), least=least, greatest=greatest)
        found.append(Continuous(name=one["Name"], least=least, greatest=greatest, scaling=scaling))
    for one in _listed(ranges, "IntegerParameterRanges"):
        low, high = int(one["MinValue"]), int(one["MaxValue"])
        scaling = scaling_of(one.get("ScalingType", ""), least=low, greatest=high)
        found.append(Integer(name=one["Name"], least=low, greatest=high, scaling=scaling))
    found += [
        Categorical(name=one["Name"], values=tuple(one["Values"]))
        for one in _listed(ranges, "CategoricalParameterRanges")
    ]
    found += [_around(one["Name"], one["ValueHint"]) for one in _listed(ranges, "AutoParameters")]
    return tuple(found)


def _around(name: str, hint: str) -> Continuous | Integer | Categorical:
    """Return Autotune's range around a hint.

    A hint becomes the only value in three cases: it is not a positive number, its range does not fit in floats, or its
    hyperparameter belongs to the platform. SDK v2 sends all hyperparameters that the user does not keep static as
    hints, even its own, such as the log level.
    """
    only = Categorical(name=name, values=(hint,))
    if name.startswith(PLATFORM_PREFIX):
        return only
    try:
        number = float(hint)
    except ValueError:
        return only
    if not (number / HINT_SPAN > 0 and number * HINT_SPAN < math.inf):
        return only
    if hint.strip().isdecimal():
        low, high = max(1, int(number) // INTEGER_HINT_SPAN), int(number) * INTEGER_HINT_SPAN
        return Integer(name=name, least=low, greatest=high, scaling=scaling_of("Logarithmic", least=low, greatest=high))
    low_value, high_value = number / HINT_SPAN, number * HINT_SPAN
    if number < 1:
        # the range around a hint below 1, such as a share or a rate, never exceeds 1
        high_value = min(high_value, 1.0)
    return Continuous(
        name=name,
        least=low_value,
        greatest=high_value,
        scaling=scaling_of("Logarithmic", least=low_value, greatest=high_value),
    )


def _listed(ranges: Mapping[str, Any], member: str) -> Sequence[Mapping[str, Any]]:
    return ranges.get(member) or ()
