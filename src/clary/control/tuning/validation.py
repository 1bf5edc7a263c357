"""Rules of CreateHyperParameterTuningJob that the service model does not contain. Pure.

Where: `services.tuning.tuning_calls` calls `check` after `wire.validation` has checked the shapes and before anything
is stored. Source: CreateHyperParameterTuningJob (AWS API reference); "Define hyperparameter ranges", "Configure and
launch a hyperparameter tuning job" (developer guide).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.control.jobs.members.image_metrics import definitions_of
from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Range, Scaling, num_values
from clary.control.tuning.tuning_request import OBJECTIVE_KEY, Definition, TuningRequest

MAX_GRID = 100_000  # maximum number of points of a grid
_ONE_TYPE = ("InstanceType", "InstanceCount", "VolumeSizeInGB")  # members that InstanceConfigs excludes
# Member of the tuning job's configuration -> equivalent member of a training job definition.
_PLACES = {"HyperParameterTuningJobObjective": "TuningObjective", "ParameterRanges": "HyperParameterRanges"}
MAX_EPOCHS = 20_000  # limit of Hyperband's MaxResource (AWS API reference)
MAX_INTEGER = 2**53  # a search rounds greater integers


def check(raw: Mapping[str, Any]) -> None:
    """Refuse a request whose members contradict each other. Raises: WireError(ValidationException)."""
    if bool(raw.get("TrainingJobDefinition")) == bool(raw.get("TrainingJobDefinitions")):
        raise _refusal("Give either TrainingJobDefinition or TrainingJobDefinitions.")
    request = TuningRequest(raw)
    _check_places(request)
    try:
        definitions = request.definitions
    except ValueError as error:
        raise _refusal(f"MinValue and MaxValue of a range must be numbers: {error}.") from error
    names = Counter(one.name for one in definitions)
    if any(count > 1 for count in names.values()):
        raise _refusal(f"DefinitionName must be unique; {names.most_common(1)[0][0]!r} stands twice.")
    for definition in definitions:
        _check_definition(definition, request)
    if len({one.objective.is_maximized for one in definitions}) > 1:
        raise _refusal(
            "TuningObjective needs the same Type in all TrainingJobDefinitions, Maximize or Minimize: the best "
            "training job is the best of all of them."
        )
    _check_limits(request)
    _check_strategy(request)


def without_effect(request: TuningRequest) -> tuple[str, ...]:
    """Return a sentence for each member that the request's strategy ignores; its training jobs show these sentences."""
    found = []
    if request.parents and request.strategy == "Grid":
        found.append("WarmStartConfig has no effect with Strategy Grid, which takes each of its points.")
    if request.parents and request.strategy == "Random":
        found.append("WarmStartConfig has no effect with Strategy Random but that points of parents are not repeated.")
    if request.random_seed is not None and request.strategy == "Grid":
        found.append("RandomSeed has no effect with Strategy Grid, whose order is fixed.")
    return tuple(found)


def _check_places(request: TuningRequest) -> None:
    only = request.request.get("TrainingJobDefinition") or {}
    for member, inner in _PLACES.items():
        if request.config.get(member) and only.get(inner):
            raise _refusal(f"{member} and {inner} of TrainingJobDefinition say the same; leave one of them out.")
    if request.request.get("TrainingJobDefinitions"):
        for member, inner in _PLACES.items():
            if request.config.get(member):
                raise _refusal(f"With TrainingJobDefinitions each one has its {inner}; leave {member} out.")
        if any(not one.get("DefinitionName") for one in request.request["TrainingJobDefinitions"]):
            raise _refusal("Each of TrainingJobDefinitions needs a DefinitionName.")


def _check_definition(definition: Definition, request: TuningRequest) -> None:
    where = f" of {definition.name}" if definition.name else ""
    given = definition.definition
    if not definition.objective.metric:
        raise _refusal(f"An objective{where} is needed: HyperParameterTuningJobObjective, or TuningObjective.")
    metrics = [one["Name"] for one in definitions_of(given["AlgorithmSpecification"])]
    if definition.objective.metric not in metrics:
        raise _refusal(
            f"A metric is required for this hyperparameter tuning job objective{where}. Provide a metric in the metric "
            f"definitions: {definition.objective.metric!r} is not among {metrics}."
        )
    if bool(given.get("ResourceConfig")) == bool(given.get("HyperParameterTuningResourceConfig")):
        raise _refusal(f"Give either ResourceConfig or HyperParameterTuningResourceConfig{where}.")
    own = given.get("HyperParameterTuningResourceConfig") or {}
    if own.get("InstanceConfigs") and (beside := [name for name in _ONE_TYPE if own.get(name)]):
        raise _refusal(
            f"InstanceConfigs{where} give each instance type with its count and volume size; leave {beside[0]} out."
        )
    if not definition.space:
        raise _refusal(f"At least one hyperparameter range is needed{where}.")
    names = Counter(one.name for one in definition.space)
    if any(count > 1 for count in names.values()):
        raise _refusal(f"A hyperparameter can have only one range; {names.most_common(1)[0][0]!r}{where} has several.")
    static = given.get("StaticHyperParameters") or {}
    if both := sorted(set(static) & set(names)):
        raise _refusal(f"Following hyperparameters{where} are both in static and tunable hyperparameters: {both}.")
    if OBJECTIVE_KEY in names:
        raise _refusal(f"The hyperparameter {OBJECTIVE_KEY} is the service's own; it cannot be tuned.")
    for one in definition.space:
        _check_range(one)
    if not request.is_autotuned and _lists_of(request, definition).get("AutoParameters"):
        raise _refusal("AutoParameters need Autotune with Mode Enabled.")


def _check_range(one: Range) -> None:
    if isinstance(one, Categorical):
        if len(set(one.values)) < len(one.values):
            raise _refusal(f"The values of {one.name!r} are not unique: {list(one.values)}.")
        return
    if not one.least <= one.greatest:
        raise _refusal(f"MinValue {one.least} of {one.name!r} is not at most MaxValue {one.greatest}.")
    if not abs(one.greatest) < float("inf") or not abs(one.least) < float("inf"):
        raise _refusal(f"The bounds of {one.name!r} must be finite numbers.")
    if isinstance(one, Integer) and max(abs(one.least), abs(one.greatest)) > MAX_INTEGER:
        raise _refusal(f"The bounds of {one.name!r} must be at most {MAX_INTEGER} in absolute value.")
    if not one.greatest - one.least < float("inf"):
        raise _refusal(f"MaxValue and MinValue of {one.name!r} are too far apart.")
    if one.scaling is Scaling.LOGARITHMIC and one.least <= 0:
        raise _refusal(f"Logarithmic scaling of {one.name!r} needs a MinValue above 0, got {one.least}.")
    if one.scaling is Scaling.REVERSE_LOGARITHMIC:
        if not isinstance(one, Continuous):
            raise _refusal(f"ReverseLogarithmic scaling is for continuous ranges; {one.name!r} is an integer range.")
        if one.least < 0 or one.greatest >= 1:
            raise _refusal(f"ReverseLogarithmic scaling of {one.name!r} needs 0 <= MinValue <= MaxValue < 1.")


def _check_limits(request: TuningRequest) -> None:
    if request.max_jobs is not None and request.max_parallel > request.max_jobs:
        raise _refusal(
            f"MaxParallelTrainingJobs {request.max_parallel} is more than MaxNumberOfTrainingJobs {request.max_jobs}."
        )
    has_end = (
        request.max_jobs is not None
        or request.max_runtime_s is not None
        or request.max_not_improving is not None
        or request.ends_on_convergence
        or request.strategy == "Grid"
    )
    if not has_end:
        raise _refusal(
            "The tuning job would have no end: give MaxNumberOfTrainingJobs, MaxRuntimeInSeconds, "
            "BestObjectiveNotImproving or ConvergenceDetected."
        )


def _check_strategy(request: TuningRequest) -> None:
    config = request.config.get("StrategyConfig") or {}
    if request.strategy != "Hyperband" and config.get("HyperbandStrategyConfig"):
        raise _refusal("HyperbandStrategyConfig needs Strategy Hyperband.")
    if request.strategy == "Hyperband":
        least, most = request.hyperband_resources
        if request.config.get("TrainingJobEarlyStoppingType", "Off") != "Off":
            raise _refusal(
                "TrainingJobEarlyStoppingType must be Off with Strategy Hyperband, which stops training jobs "
                "early itself."
            )
        if most is not None and least > most:
            raise _refusal(f"MinResource {least} is more than MaxResource {most}.")
        if most is not None and most > MAX_EPOCHS:
            raise _refusal(f"MaxResource {most} is more than {MAX_EPOCHS}.")
        for definition in request.definitions:
            if most is None and definition.num_epochs is not None and least > definition.num_epochs:
                raise _refusal(
                    f"MinResource {least} is more than the {definition.num_epochs} epochs of StaticHyperParameters; "
                    "give MaxResource if a training job reports more values."
                )
    if request.strategy != "Grid":
        return
    for definition in request.definitions:
        if any(not isinstance(one, Categorical) for one in definition.space):
            raise _refusal("Strategy Grid takes categorical ranges alone.")
    whole = sum(num_values(one.space) or 0 for one in request.definitions)
    if whole > MAX_GRID:
        raise _refusal(f"The grid has {whole} points; {MAX_GRID} is the most.")
    if request.max_jobs is not None and request.max_jobs != whole:
        raise _refusal(
            f"MaxNumberOfTrainingJobs {request.max_jobs} differs from the number of points of the grid, {whole}; leave "
            "it out."
        )


def _lists_of(request: TuningRequest, definition: Definition) -> Mapping[str, Any]:
    return request.config.get("ParameterRanges") or definition.definition.get("HyperParameterRanges") or {}


def _refusal(message: str) -> WireError:
    return WireError("ValidationException", message)
