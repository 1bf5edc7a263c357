"""Rules of CreateHyperParameterTuningJob: each refusal with its own message, and requests that are accepted."""

import copy

import pytest
from tuning_trials import METRIC, RANGES, tuning_request

from clary.base.errors import WireError
from clary.control.tuning.tuning_request import TuningRequest
from clary.control.tuning.validation import MAX_EPOCHS, MAX_GRID, MAX_INTEGER, check, without_effect

RESOURCES = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
SPECIFICATION = {
    "TrainingImage": "pytorch:2.8",
    "TrainingInputMode": "File",
    "MetricDefinitions": [{"Name": METRIC, "Regex": "accuracy=([0-9.]+)"}],
}
OBJECTIVE = {"Type": "Maximize", "MetricName": METRIC}
LIMITS = {"MaxNumberOfTrainingJobs": 4, "MaxParallelTrainingJobs": 2}
NO_NUMBER = {"MaxParallelTrainingJobs": 2}


def request_of(config=None, **definition):
    given = {"AlgorithmSpecification": SPECIFICATION, "ResourceConfig": RESOURCES, **definition}
    raw = tuning_request(config=config, **given)
    for part in (raw["HyperParameterTuningJobConfig"], raw["TrainingJobDefinition"]):
        for name in [name for name, value in part.items() if value is None]:
            del part[name]
    return raw


def with_definitions(*definitions, config=None):
    raw = request_of({"HyperParameterTuningJobObjective": None, "ParameterRanges": None, **(config or {})})
    one = raw.pop("TrainingJobDefinition")
    own = {"TuningObjective": OBJECTIVE, "HyperParameterRanges": RANGES}
    raw["TrainingJobDefinitions"] = [{**copy.deepcopy(one), **own, **definition} for definition in definitions]
    return raw


def ranges_of(kind, least, greatest, scaling="Auto"):
    one = {"Name": "x", "MinValue": least, "MaxValue": greatest, "ScalingType": scaling}
    return {"ParameterRanges": {f"{kind}ParameterRanges": [one]}}


def choices(*sizes):
    lists = [{"Name": f"c{place}", "Values": [str(one) for one in range(size)]} for place, size in enumerate(sizes)]
    return {"CategoricalParameterRanges": lists}


def grid(*sizes, **limits):
    limits = {"MaxParallelTrainingJobs": 2, **limits}
    return request_of({"Strategy": "Grid", "ParameterRanges": choices(*sizes), "ResourceLimits": limits})


def refusal_of(raw):
    with pytest.raises(WireError) as refused:
        check(raw)
    assert refused.value.code == "ValidationException"
    return refused.value.message


def test_a_valid_request_is_accepted():
    check(request_of())
    check(with_definitions({"DefinitionName": "a"}, {"DefinitionName": "b"}))


# Places of members


def test_either_one_definition_or_a_list_of_definitions_is_required():
    raw = request_of()
    both = {**raw, "TrainingJobDefinitions": [raw["TrainingJobDefinition"]]}
    neither = {name: value for name, value in raw.items() if name != "TrainingJobDefinition"}
    for one in (both, neither, {**neither, "TrainingJobDefinitions": []}):
        assert refusal_of(one) == "Give either TrainingJobDefinition or TrainingJobDefinitions."


@pytest.mark.parametrize(
    ("member", "value", "inner"),
    [
        ("HyperParameterTuningJobObjective", OBJECTIVE, "TuningObjective"),
        ("ParameterRanges", RANGES, "HyperParameterRanges"),
    ],
)
def test_in_a_list_each_definition_has_its_own_objective_and_ranges(member, value, inner):
    message = refusal_of(with_definitions({"DefinitionName": "a"}, config={member: value}))
    assert f"each one has its {inner}; leave {member} out" in message


def test_definitions_have_unique_names():
    assert "needs a DefinitionName" in refusal_of(with_definitions({"DefinitionName": "a"}, {}))
    assert "'a' stands twice" in refusal_of(with_definitions({"DefinitionName": "a"}, {"DefinitionName": "a"}))


def test_definitions_may_have_different_metrics_that_are_all_maximized_or_all_minimized():
    other = {"Type": OBJECTIVE["Type"], "MetricName": "f1"}
    specification = {
        "TrainingImage": "generic:1",
        "TrainingInputMode": "File",
        "MetricDefinitions": [{"Name": "f1", "Regex": "f1=(.*)"}],
    }
    check(
        with_definitions(
            {"DefinitionName": "a"},
            {"DefinitionName": "b", "TuningObjective": other, "AlgorithmSpecification": specification},
        )
    )
    opposite = {"Type": "Minimize", "MetricName": METRIC}
    raw = with_definitions({"DefinitionName": "a"}, {"DefinitionName": "b", "TuningObjective": opposite})
    assert "the same Type in all TrainingJobDefinitions" in refusal_of(raw)


def test_a_refusal_names_the_definition_at_fault():
    raw = with_definitions({"DefinitionName": "a"}, {"DefinitionName": "b", "HyperParameterRanges": {}})
    assert refusal_of(raw) == "At least one hyperparameter range is needed of b."


# Definitions


def test_an_objective_is_required():
    assert "An objective is needed" in refusal_of(request_of({"HyperParameterTuningJobObjective": None}))
    check(request_of({"HyperParameterTuningJobObjective": None}, TuningObjective=OBJECTIVE))


def test_the_objective_may_be_a_metric_of_the_image_if_the_definition_names_none():
    objective = {"Type": "Minimize", "MetricName": "validation:rmse"}
    specification = {"TrainingImage": "r/sagemaker-xgboost:1.7-1", "TrainingInputMode": "File"}
    config = {"HyperParameterTuningJobObjective": objective}
    check(request_of(config, AlgorithmSpecification=specification))
    own = {**specification, "MetricDefinitions": [{"Name": "loss", "Regex": "x"}]}
    assert "'validation:rmse' is not among ['loss']" in refusal_of(request_of(config, AlgorithmSpecification=own))


@pytest.mark.parametrize("metrics", [None, [], [{"Name": "loss", "Regex": "x"}]])
def test_the_objective_is_one_of_the_metrics(metrics):
    specification = {**SPECIFICATION, "MetricDefinitions": metrics}
    message = refusal_of(request_of(AlgorithmSpecification=specification))
    assert "A metric is required for this hyperparameter tuning job objective" in message
    assert repr(METRIC) in message


def test_resources_are_given_in_exactly_one_place():
    both = request_of(HyperParameterTuningResourceConfig=RESOURCES)
    for raw in (both, request_of(ResourceConfig=None)):
        assert refusal_of(raw) == "Give either ResourceConfig or HyperParameterTuningResourceConfig."
    check(request_of(ResourceConfig=None, HyperParameterTuningResourceConfig=RESOURCES))


@pytest.mark.parametrize("ranges", [{}, {"ContinuousParameterRanges": []}, None])
def test_at_least_one_range_is_required(ranges):
    assert "At least one hyperparameter range" in refusal_of(request_of({"ParameterRanges": ranges}))


def test_a_hyperparameter_has_one_range_and_no_static_value():
    twice = {**RANGES, "CategoricalParameterRanges": [{"Name": "lr", "Values": ["0.1"]}]}
    assert "'lr' has several" in refusal_of(request_of({"ParameterRanges": twice}))
    message = refusal_of(request_of(StaticHyperParameters={"lr": "1", "layers": "2", "other": "3"}))
    assert "both in static and tunable hyperparameters: ['layers', 'lr']" in message


def test_the_hyperparameter_with_the_objective_name_is_reserved():
    key = "_tuning_objective_metric"
    check(request_of(StaticHyperParameters={key: METRIC}))  # a client may send back a description
    tuned = {"CategoricalParameterRanges": [{"Name": key, "Values": ["a"]}]}
    assert "is the service's own" in refusal_of(request_of({"ParameterRanges": tuned}))


def test_hints_are_accepted_only_with_autotune():
    hints = {"ParameterRanges": {"AutoParameters": [{"Name": "x", "ValueHint": "0.1"}]}}
    assert refusal_of(request_of(hints)) == "AutoParameters need Autotune with Mode Enabled."
    check({**request_of(hints), "Autotune": {"Mode": "Enabled"}})


# Ranges


@pytest.mark.parametrize("kind", ["Continuous", "Integer"])
def test_bounds_are_numbers_in_ascending_order(kind):
    assert "is not at most" in refusal_of(request_of(ranges_of(kind, "2", "1")))
    for pair in (("one", "2"), ("1", "")):
        assert "must be numbers" in refusal_of(request_of(ranges_of(kind, *pair)))


@pytest.mark.parametrize("scaling", ["Auto", "Linear", "Logarithmic"])
def test_bounds_with_the_maximum_number_of_digits_are_handled(scaling):
    digits = "9" * 256
    check(request_of(ranges_of("Continuous", "1", digits, scaling)))
    assert f"at most {MAX_INTEGER}" in refusal_of(request_of(ranges_of("Integer", "1", digits, scaling)))


@pytest.mark.parametrize("pair", [("nan", "1"), ("0", "nan"), ("-inf", "1"), ("0", "inf"), ("0", "1e999")])
def test_bounds_of_continuous_ranges_are_finite(pair):
    message = refusal_of(request_of(ranges_of("Continuous", *pair)))
    assert "finite" in message or "not at most" in message


def test_the_difference_of_bounds_must_be_finite():
    assert "too far apart" in refusal_of(request_of(ranges_of("Continuous", "-1.7e308", "1.7e308")))
    check(request_of(ranges_of("Continuous", "0", "1.7e308")))


def test_integer_bounds_are_integers_within_the_limit_of_the_search():
    assert "must be numbers" in refusal_of(request_of(ranges_of("Integer", "1.5", "2")))
    check(request_of(ranges_of("Integer", str(-MAX_INTEGER), str(MAX_INTEGER))))
    for pair in (("0", str(MAX_INTEGER + 1)), (str(-MAX_INTEGER - 1), "0")):
        assert f"at most {MAX_INTEGER}" in refusal_of(request_of(ranges_of("Integer", *pair)))


@pytest.mark.parametrize("kind", ["Continuous", "Integer"])
@pytest.mark.parametrize("least", ["0", "-1"])
def test_logarithmic_scaling_needs_positive_bounds(kind, least):
    assert "needs a MinValue above 0" in refusal_of(request_of(ranges_of(kind, least, "10", "Logarithmic")))
    check(request_of(ranges_of(kind, "1", "10", "Logarithmic")))


def test_reverse_logarithmic_scaling_is_for_continuous_ranges_below_one():
    assert "is for continuous ranges" in refusal_of(request_of(ranges_of("Integer", "1", "2", "ReverseLogarithmic")))
    for pair in (("0.5", "1"), ("-0.1", "0.5")):
        message = refusal_of(request_of(ranges_of("Continuous", *pair, "ReverseLogarithmic")))
        assert "0 <= MinValue <= MaxValue < 1" in message
    check(request_of(ranges_of("Continuous", "0", "0.999", "ReverseLogarithmic")))


@pytest.mark.parametrize("kind", ["Continuous", "Integer"])
def test_a_range_of_one_value_is_accepted(kind):
    check(request_of(ranges_of(kind, "3", "3")))


def test_values_of_a_category_are_unique():
    lists = {"CategoricalParameterRanges": [{"Name": "x", "Values": ["a", "b", "a"]}]}
    assert "are not unique" in refusal_of(request_of({"ParameterRanges": lists}))


# Limits and strategies


def test_the_parallel_limit_is_at_most_the_number_of_training_jobs():
    limits = {"MaxNumberOfTrainingJobs": 2, "MaxParallelTrainingJobs": 3}
    assert "is more than MaxNumberOfTrainingJobs 2" in refusal_of(request_of({"ResourceLimits": limits}))
    check(request_of({"ResourceLimits": {**limits, "MaxNumberOfTrainingJobs": 3}}))


def test_a_tuning_job_needs_a_limit_that_ends_it():
    endless = {"ResourceLimits": NO_NUMBER}
    assert "would have no end" in refusal_of(request_of(endless))
    target = {"TuningJobCompletionCriteria": {"TargetObjectiveMetricValue": 0.9}}
    assert "would have no end" in refusal_of(request_of({**endless, **target}))  # it may never be reached
    check(request_of({"ResourceLimits": {**NO_NUMBER, "MaxRuntimeInSeconds": 120}}))
    for criteria in (
        {"BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 3}},
        {"ConvergenceDetected": {"CompleteOnConvergence": "Enabled"}},
    ):
        check(request_of({**endless, "TuningJobCompletionCriteria": criteria}))
    check({**request_of(endless), "Autotune": {"Mode": "Enabled"}})
    check(grid(2, 3))


def test_hyperband_resources_are_only_for_hyperband_and_in_order():
    resources = {"StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": 3, "MaxResource": 2}}}
    assert "needs Strategy Hyperband" in refusal_of(request_of(resources))
    hyperband = {"Strategy": "Hyperband"}
    assert "MinResource 3 is more than MaxResource 2" in refusal_of(request_of({**hyperband, **resources}))
    check(request_of(hyperband))
    three = {**hyperband, "StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": 3}}}
    check(request_of(three))
    check(request_of(three, StaticHyperParameters={"epochs": "3"}))
    words = "MinResource 3 is more than the 2 epochs of StaticHyperParameters"
    assert words in refusal_of(request_of(three, StaticHyperParameters={"epochs": "2"}))
    for most, is_taken in ((MAX_EPOCHS, True), (MAX_EPOCHS + 1, False)):
        raw = request_of({**hyperband, "StrategyConfig": {"HyperbandStrategyConfig": {"MaxResource": most}}})
        if is_taken:
            check(raw)
        else:
            assert "MaxResource 20001 is more than 20000" in refusal_of(raw)


def test_early_stopping_is_refused_with_hyperband():
    early = {"Strategy": "Hyperband", "TrainingJobEarlyStoppingType": "Auto"}
    assert "must be Off with Strategy Hyperband" in refusal_of(request_of(early))
    check(request_of({**early, "TrainingJobEarlyStoppingType": "Off"}))
    check(request_of({**early, "Strategy": "Bayesian"}))


def test_a_grid_has_only_categories_and_as_many_training_jobs_as_points():
    assert "categorical ranges alone" in refusal_of(request_of({"Strategy": "Grid"}))
    check(grid(2, 3, MaxNumberOfTrainingJobs=6))
    for number in (5, 7):
        message = refusal_of(grid(2, 3, MaxNumberOfTrainingJobs=number))
        assert f"MaxNumberOfTrainingJobs {number} differs from the number of points of the grid, 6" in message


def test_the_size_of_a_grid_is_limited():
    assert f"{MAX_GRID} is the most" in refusal_of(grid(101, 100, 10))
    check(grid(100, 100, 10))


# No silent choice


@pytest.mark.parametrize(("inner", "value"), [("TuningObjective", OBJECTIVE), ("HyperParameterRanges", RANGES)])
def test_a_member_that_is_given_in_two_places_is_refused(inner, value):
    words = refusal_of(request_of(**{inner: value}))
    assert f"{inner} of TrainingJobDefinition say the same" in words


@pytest.mark.parametrize("member", sorted(RESOURCES))
def test_several_instance_types_exclude_the_members_of_a_single_type(member):
    several = {"InstanceConfigs": [RESOURCES], member: RESOURCES[member]}
    words = refusal_of(request_of(ResourceConfig=None, HyperParameterTuningResourceConfig=several))
    assert f"leave {member} out" in words


@pytest.mark.parametrize(
    ("strategy", "said"),
    [("Grid", ["WarmStartConfig", "RandomSeed"]), ("Random", ["WarmStartConfig"]), ("Bayesian", []), ("Hyperband", [])],
)
def test_members_that_a_strategy_does_not_use_are_named(strategy, said):
    raw = request_of({"Strategy": strategy, "RandomSeed": 3})
    raw["WarmStartConfig"] = {
        "ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": "parent"}],
        "WarmStartType": "TransferLearning",
    }
    assert [sentence.split()[0] for sentence in without_effect(TuningRequest(raw))] == said
