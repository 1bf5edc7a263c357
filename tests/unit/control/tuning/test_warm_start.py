"""The tuning jobs that may be parents, and the trials of parents with which a child starts."""

import pytest
from tuning_trials import METRIC, RANGES, trial, tuning_job, tuning_request

from clary.control.tuning.search import Observation
from clary.control.tuning.tuning_job import TuningStatus
from clary.control.tuning.tuning_request import TuningRequest
from clary.control.tuning.warm_start import MAX_PARENT_TRIALS, observations_of, why_not_parent

IDENTICAL = "IdenticalDataAndAlgorithm"


def child(kind="TransferLearning", **options):
    start = {"ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": "tuned"}], "WarmStartType": kind}
    return TuningRequest({**tuning_request("child", **options), "WarmStartConfig": start})


def with_definitions(*names):
    raw = tuning_request()
    one = raw.pop("TrainingJobDefinition")
    objective = {"Type": "Maximize", "MetricName": METRIC}
    raw["TrainingJobDefinitions"] = [
        {**one, "DefinitionName": name, "TuningObjective": objective, "HyperParameterRanges": RANGES} for name in names
    ]
    return raw


@pytest.mark.parametrize("kind", ["TransferLearning", IDENTICAL])
@pytest.mark.parametrize("status", [TuningStatus.COMPLETED, TuningStatus.STOPPED, TuningStatus.FAILED])
def test_an_ended_tuning_job_can_be_a_parent(kind, status):
    assert why_not_parent(child(kind), tuning_job(status=status)) == ""


@pytest.mark.parametrize("status", [TuningStatus.IN_PROGRESS, TuningStatus.STOPPING])
def test_a_running_tuning_job_can_not_be_a_parent(status):
    assert status.value in why_not_parent(child(), tuning_job(status=status))


def test_parents_and_children_have_exactly_one_definition():
    several = with_definitions("a", "b")
    assert "one TrainingJobDefinition" in why_not_parent(child(), tuning_job(request=several))
    assert "one TrainingJobDefinition" in why_not_parent(TuningRequest(several), tuning_job())


@pytest.mark.parametrize(
    "other", [{"Type": "Minimize", "MetricName": METRIC}, {"Type": "Maximize", "MetricName": "f1"}]
)
def test_the_objective_is_the_same_and_in_the_same_direction(other):
    raw = tuning_request(config={"HyperParameterTuningJobObjective": other})
    assert "another objective" in why_not_parent(child(), tuning_job(request=raw))


def test_identical_data_needs_the_same_number_of_hyperparameters_and_the_same_image():
    narrower = {"IntegerParameterRanges": RANGES["IntegerParameterRanges"]}
    fewer = child(IDENTICAL, ranges=narrower)
    assert "tuned, 6; it is 3" in why_not_parent(fewer, tuning_job())
    assert why_not_parent(child(ranges=narrower), tuning_job()) == ""
    static = {"epochs": "5", "api_token": "s3cr3t", "lr": "0.1", "momentum": "0.9", "optimizer": "sgd"}
    assert why_not_parent(child(IDENTICAL, ranges=narrower, StaticHyperParameters=static), tuning_job()) == ""
    image = {"TrainingImage": "pytorch:1.13", "TrainingInputMode": "File"}
    older = tuning_job(request=tuning_request(AlgorithmSpecification=image))
    assert "pytorch:1.13" in why_not_parent(child(IDENTICAL), older)
    assert why_not_parent(child(), older) == ""


def test_hyperparameters_of_the_platform_and_of_the_service_are_not_counted():
    static = {"epochs": "5", "api_token": "x", "sagemaker_program": '"train.py"', "_tuning_objective_metric": METRIC}
    assert why_not_parent(child(IDENTICAL, StaticHyperParameters=static), tuning_job()) == ""


def test_a_child_starts_with_the_trials_that_have_an_objective_and_lie_in_its_ranges():
    ranges = {"IntegerParameterRanges": [{"Name": "layers", "MinValue": "2", "MaxValue": "3"}]}
    (definition,) = child(ranges=ranges).definitions
    trials = [trial(number, number / 10) for number in range(1, 9)]  # with 2, 3, ... 8, 1 layers
    trials += [trial(9, None), trial(17, 0.9, parameters={"lr": "0.1"})]
    assert observations_of(reversed(trials), definition, tuning_job()) == (
        Observation(parameters={"layers": "2"}, value=0.1, is_over=True),
        Observation(parameters={"layers": "3"}, value=0.2, is_over=True),
    )


def test_a_hyperparameter_that_was_static_has_the_static_value_of_the_parent():
    for text, low, known in (("5", "1", True), ('"5"', "1", True), ("5", "6", False), ("many", "1", False)):
        ranges = {"IntegerParameterRanges": [{"Name": "epochs", "MinValue": low, "MaxValue": "9"}]}
        parent = tuning_job(request=tuning_request(StaticHyperParameters={"epochs": text}))
        found = observations_of([trial(1)], child(ranges=ranges).definitions[0], parent)
        assert [one.parameters for one in found] == ([{"epochs": "5"}] if known else [])
    ranges = {"CategoricalParameterRanges": [{"Name": "depth", "Values": ["1", "2"]}]}
    assert observations_of([trial(1)], child(ranges=ranges).definitions[0], tuning_job()) == ()


def test_of_a_categorical_hyperparameter_that_is_now_static_only_trials_with_that_value_count():
    ranges = {"IntegerParameterRanges": RANGES["IntegerParameterRanges"]}
    trials = [trial(1, parameters={"layers": "1", "optimizer": "sgd", "lr": "0.01"})]
    trials += [trial(2, parameters={"layers": "2", "optimizer": "adam", "lr": "0.02"})]
    for optimizer, layers in (("adam", ["2"]), ('"sgd"', ["1"]), ("lamb", []), ("unknown", [])):
        static = {"optimizer": optimizer, "lr": "0.5"}
        (definition,) = child(ranges=ranges, StaticHyperParameters=static).definitions
        found = observations_of(trials, definition, tuning_job())
        assert [one.parameters for one in found] == [{"layers": one} for one in layers]


def test_only_the_newest_trials_of_a_parent_are_used():
    trials = [trial(number) for number in range(1, MAX_PARENT_TRIALS + 51)]
    found = observations_of(trials, child().definitions[0], tuning_job())
    assert len(found) == MAX_PARENT_TRIALS
    assert observations_of([], child().definitions[0], tuning_job()) == ()
