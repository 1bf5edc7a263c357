"""Starts of trials: one of several instance types, members that nobody sent, metrics of each definition, parents."""

import pytest
from tuning_runs import METRIC, RANGES, RESOURCES, TuningRuns, definition_of, request_of

from clary.base.errors import WireError
from clary.control.jobs.job_request import JobRequest
from clary.control.server.pages.tuning_page import TuningPages
from clary.control.tuning.tuning_job import TuningStatus
from clary.testing.control_plane import ControlPlane

FITS = {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 3}
NEVER = {"InstanceType": "ml.m5.large", "InstanceCount": 50, "VolumeSizeInGB": 9}
SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 120},
}
IDENTICAL = {
    "WarmStartType": "IdenticalDataAndAlgorithm",
    "ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": "parent"}],
}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


@pytest.fixture
def runs(plane):
    return TuningRuns(plane)


def several(*configs, **members):
    own = {"InstanceConfigs": list(configs), "AllocationStrategy": "Prioritized"}
    return definition_of(ResourceConfig=None, HyperParameterTuningResourceConfig=own, **members)


# Hosts


@pytest.mark.parametrize("members", [{}, SPOT], ids=["on demand", "spot"])
async def test_a_trial_is_described_with_the_first_instance_config_that_can_run(plane, runs, members):
    await runs.create(most=1, parallel=1, TrainingJobDefinition=several(NEVER, FITS, **members))
    (name,) = await runs.open_names()
    assert (await plane.describe(name))["ResourceConfig"] == FITS
    assert len((await plane.job(name)).plan["hosts"]) == 2
    told = (await runs.describe())["TrainingJobDefinition"]
    assert told["ResourceConfig"] == NEVER, "the first one, before a trial shows the choice"
    assert told["HyperParameterTuningResourceConfig"]["InstanceConfigs"] == [NEVER, FITS]


async def test_two_instance_configs_may_have_the_same_type(plane, runs):
    await runs.create(most=1, parallel=1, TrainingJobDefinition=several(NEVER, {**NEVER, "InstanceCount": 1}))
    (name,) = await runs.open_names()
    assert (await plane.describe(name))["ResourceConfig"] == {**NEVER, "InstanceCount": 1}


async def test_instance_configs_of_which_none_can_ever_run_are_refused_with_the_first_one(runs):
    more = {**NEVER, "InstanceCount": 60}
    with pytest.raises(WireError, match="50") as refused:
        await runs.create(TrainingJobDefinition=several(NEVER, more))
    assert refused.value.code == "ResourceLimitExceeded"


async def test_a_keep_alive_period_is_described_only_if_the_definition_has_it(plane, runs):
    await runs.create("asks-not", most=1, parallel=1)
    (name,) = await runs.open_names("asks-not")
    assert JobRequest((await plane.job(name)).request).keep_alive_s == 120
    assert (await plane.describe(name))["ResourceConfig"] == RESOURCES
    await runs.run(name)
    await plane.call(
        "sagemaker", "UpdateTrainingJob", TrainingJobName=name, ResourceConfig={"KeepAlivePeriodInSeconds": 60}
    )
    assert (await plane.describe(name))["ResourceConfig"] == {**RESOURCES, "KeepAlivePeriodInSeconds": 60}
    asked = {**RESOURCES, "KeepAlivePeriodInSeconds": 120}
    await runs.create("asks", most=1, parallel=1, TrainingJobDefinition=definition_of(ResourceConfig=asked))
    (name,) = await runs.open_names("asks")
    assert (await plane.describe(name))["ResourceConfig"] == asked


# Definitions


async def test_each_definition_has_its_own_metric_and_the_best_trial_is_the_best_of_all(plane, runs):
    def algorithm(name, metric):
        specification = {
            **definition_of()["AlgorithmSpecification"],
            "MetricDefinitions": [{"Name": metric, "Regex": f"{metric}=([0-9.]+)"}],
        }
        objective = {"Type": "Minimize", "MetricName": metric}
        return definition_of(
            DefinitionName=name,
            TuningObjective=objective,
            HyperParameterRanges=RANGES,
            AlgorithmSpecification=specification,
        )

    no_shared = {"HyperParameterTuningJobObjective": None, "ParameterRanges": None}
    definitions = [algorithm("fm", "test:rmse"), algorithm("knn", "test:mse")]
    await runs.create(most=2, TrainingJobDefinition=None, TrainingJobDefinitions=definitions, config=no_shared)
    fm, knn = await runs.open_names()
    await runs.finish(fm, 0.5, metric="test:rmse")
    await runs.finish(knn, 0.25, metric="test:mse")
    answer = await runs.describe()
    assert answer["HyperParameterTuningJobStatus"] == "Completed"
    best = answer["BestTrainingJob"]
    assert (best["TrainingJobName"], best["TrainingJobDefinitionName"]) == (knn, "knn")
    told = {"Type": "Minimize", "MetricName": "test:mse", "Value": 0.25}
    assert best["FinalHyperParameterTuningJobObjectiveMetric"] == told
    rows = await runs.call("ListTrainingJobsForHyperParameterTuningJob", HyperParameterTuningJobName="tuned")
    objectives = [row["FinalHyperParameterTuningJobObjectiveMetric"] for row in rows["TrainingJobSummaries"]]
    assert [one["MetricName"] for one in objectives] == ["test:rmse", "test:mse"]
    page = await TuningPages(plane.services).page("tuned")
    assert [one["metric"] for one in page["trials"]] == ["test:rmse", "test:mse"]


# Parents


async def test_a_child_may_tune_what_was_static_and_set_what_was_tuned(plane, runs):
    await runs.create("parent", most=2, parallel=1)
    await runs.finish_all("parent")
    ranges = {
        "ContinuousParameterRanges": RANGES["ContinuousParameterRanges"],
        "IntegerParameterRanges": [{"Name": "epochs", "MinValue": "1", "MaxValue": "9"}],
    }
    child = {"config": {"ParameterRanges": ranges, "Strategy": "Bayesian"}, "WarmStartConfig": IDENTICAL}
    definition = definition_of(StaticHyperParameters={"layers": "2"})
    await runs.create("child", most=1, parallel=1, TrainingJobDefinition=definition, **child)
    (name,) = await runs.open_names("child")
    assert set((await plane.job(name)).request["HyperParameters"]) == {
        "lr",
        "layers",
        "epochs",
        "_tuning_objective_metric",
    }
    assert (await plane.store.tuning.get("child")).status is TuningStatus.IN_PROGRESS
    more = definition_of(StaticHyperParameters={"layers": "2", "depth": "1"})
    with pytest.raises(WireError, match="3; it is 4"):
        await runs.call("CreateHyperParameterTuningJob", **request_of("more", TrainingJobDefinition=more, **child))


async def test_a_repeated_random_search_repeats_no_point_of_its_parent_whose_static_value_it_tunes(runs):
    one = {"CategoricalParameterRanges": [{"Name": "opt", "Values": ["sgd", "adam"]}]}
    await runs.create(
        "parent",
        most=2,
        parallel=1,
        config={"ParameterRanges": one, "Strategy": "Random"},
        TrainingJobDefinition=definition_of(StaticHyperParameters={"act": "a"}),
    )
    await runs.finish_all("parent")
    tried = {trial.parameters["opt"] for trial in await runs.trials("parent")}
    assert tried == {"sgd", "adam"}
    both = [{"Name": "opt", "Values": ["sgd", "adam"]}, {"Name": "act", "Values": ["a", "b"]}]
    await runs.create(
        "child",
        most=2,
        parallel=1,
        config={"ParameterRanges": {"CategoricalParameterRanges": both}, "Strategy": "Random"},
        TrainingJobDefinition=definition_of(StaticHyperParameters=None),
        WarmStartConfig=IDENTICAL,
    )
    await runs.finish_all("child")
    assert {trial.parameters["act"] for trial in await runs.trials("child")} == {"b"}
    overall = (await runs.describe("child"))["OverallBestTrainingJob"]
    assert overall["TuningJobName"] == "parent", "of equal values the earlier one"
    assert overall["FinalHyperParameterTuningJobObjectiveMetric"]["MetricName"] == METRIC
