"""Responses on tuning jobs, built from records alone: best trials, statuses of trials, and the described request."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from tuning_trials import BEGIN, METRIC, RANGES, many_trials, trial, tuning_job, tuning_request

from clary.contract.statuses import TrainingJobStatus
from clary.control.services.tuning_answers import describe_tuning_job, trial_status, trial_summary, tuning_summary
from clary.control.tuning.tuning_job import TuningStatus

RESOURCES = {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 30}
KEY = "_tuning_objective_metric"


def described(job, trials=(), live=None, best=None):
    return describe_tuning_job(job, trials, live or {}, parents_best=best)


def identical():
    raw = tuning_request("child")
    parents = [{"HyperParameterTuningJobName": "parent"}]
    start = {"WarmStartType": "IdenticalDataAndAlgorithm", "ParentHyperParameterTuningJobs": parents}
    return tuning_job("child", request={**raw, "WarmStartConfig": start})


def running(status=TrainingJobStatus.IN_PROGRESS, started_at=None):
    return SimpleNamespace(status=status, training_started_at=started_at)


def test_a_description_counts_trials_and_names_the_best():
    trials = many_trials(22)
    answer = described(tuning_job(), trials)
    assert answer["TrainingJobStatusCounters"]["NonRetryableError"] == 2
    assert answer["TrainingJobStatusCounters"]["Stopped"] == 3
    assert sum(answer["ObjectiveStatusCounters"].values()) == 22
    best = max((one for one in trials if one.value is not None), key=lambda one: one.value)
    assert answer["BestTrainingJob"]["TrainingJobName"] == best.job_name
    assert answer["ConsumedResources"] == {"RuntimeInSeconds": 22 * 40}
    assert "OverallBestTrainingJob" not in answer
    assert "FailureReason" not in answer


def test_a_failed_tuning_job_is_described_with_its_reason():
    job = tuning_job(status=TuningStatus.FAILED, end_reason="no training job told anything")
    assert described(job)["FailureReason"] == "no training job told anything"


def test_the_request_is_described_with_its_objective_and_the_resources_of_a_trial():
    raw = tuning_request(HyperParameterTuningResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 2})
    told = described(tuning_job(request=raw))
    definition = told["TrainingJobDefinition"]
    assert definition["StaticHyperParameters"] == {"epochs": "5", "api_token": "s3cr3t", KEY: METRIC}
    assert definition["ResourceConfig"] == RESOURCES
    assert told["HyperParameterTuningJobConfig"]["ParameterRanges"] == RANGES
    own = {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1, "VolumeSizeInGB": 7}
    told = described(tuning_job(request=tuning_request(ResourceConfig=own)))
    assert told["TrainingJobDefinition"]["ResourceConfig"] == own


@pytest.mark.parametrize(("own", "parents", "is_own"), [(0.5, 0.4, True), (0.4, 0.5, False), (0.5, 0.5, False)])
def test_the_overall_best_is_the_better_trial_and_the_parent_s_if_equal(own, parents, is_own):
    best = trial(3, parents, tuning_job="parent")
    answer = described(identical(), [trial(1, own, tuning_job="child")], best=best)
    overall = answer["OverallBestTrainingJob"]
    assert (overall["TrainingJobName"] == answer["BestTrainingJob"]["TrainingJobName"]) == is_own
    assert overall.get("TuningJobName") == (None if is_own else "parent")


def test_the_overall_best_is_that_of_the_parent_or_child_if_only_one_has_a_best_trial():
    own, other = trial(1, 0.1, tuning_job="child"), trial(3, 0.5, tuning_job="parent")
    assert described(identical(), [own])["OverallBestTrainingJob"]["TrainingJobName"] == own.job_name
    assert described(identical(), best=other)["OverallBestTrainingJob"]["TrainingJobName"] == other.job_name
    assert "OverallBestTrainingJob" not in described(identical())


def test_a_trial_has_the_status_of_its_training_job():
    assert trial_status(trial(1), None) is TrainingJobStatus.COMPLETED
    assert trial_status(trial(1, outcome=None), None) is TrainingJobStatus.IN_PROGRESS
    assert trial_status(trial(1, outcome=None), running(TrainingJobStatus.STOPPING)) is TrainingJobStatus.STOPPING


def test_a_summary_of_a_trial_has_the_members_that_are_known():
    job = tuning_job()
    waits = trial_summary(job, trial(1, outcome=None), running())
    assert not {"TrainingStartTime", "TrainingEndTime", "TrainingJobDefinitionName", "TuningJobName"} & set(waits)
    started_at = BEGIN + timedelta(seconds=5)
    assert trial_summary(job, trial(1, outcome=None), running(started_at=started_at))["TrainingStartTime"] == started_at
    ended = trial_summary(job, trial(2, 0.25, definition="d"), None)
    assert ended["TrainingJobDefinitionName"] == "d"
    objective = {"Type": "Maximize", "MetricName": METRIC, "Value": 0.25}
    assert ended["FinalHyperParameterTuningJobObjectiveMetric"] == objective
    assert "FinalHyperParameterTuningJobObjectiveMetric" not in trial_summary(job, trial(2, None), None)
    assert trial_summary(tuning_job("other"), trial(2), None)["TuningJobName"] == "tuned"


def test_a_summary_of_a_tuning_job_has_limits_and_an_end():
    row = tuning_summary(tuning_job(), many_trials(3))
    assert row["ResourceLimits"] == {"MaxNumberOfTrainingJobs": 40, "MaxParallelTrainingJobs": 4}
    assert row["HyperParameterTuningEndTime"] == BEGIN + timedelta(minutes=30)
    assert row["TrainingJobStatusCounters"]["Completed"] == 3
    going = tuning_job(status=TuningStatus.IN_PROGRESS, ended_at=None)
    assert "HyperParameterTuningEndTime" not in tuning_summary(going, [])


def test_the_metrics_of_the_image_are_described_if_the_definition_names_none():
    specification = {"TrainingImage": "r/sagemaker-xgboost:1.7-1", "TrainingInputMode": "File"}
    told = described(tuning_job(request=tuning_request(AlgorithmSpecification=specification)))
    metrics = told["TrainingJobDefinition"]["AlgorithmSpecification"]["MetricDefinitions"]
    assert "validation:rmse" in [item["Name"] for item in metrics]
    told = described(tuning_job())
    assert "MetricDefinitions" not in told["TrainingJobDefinition"]["AlgorithmSpecification"]


def test_members_that_the_sdk_reads_unasked_are_described_with_their_defaults():
    ranges = {"IntegerParameterRanges": RANGES["IntegerParameterRanges"]}
    told = described(tuning_job(request=tuning_request(ranges=ranges, ResourceConfig={"InstanceType": "ml.m5.large"})))
    config, definition = told["HyperParameterTuningJobConfig"], told["TrainingJobDefinition"]
    assert config["TrainingJobEarlyStoppingType"] == "Off"
    empty = {"ContinuousParameterRanges": [], "CategoricalParameterRanges": []}
    assert config["ParameterRanges"] == {**ranges, **empty}
    assert definition["StoppingCondition"] == {"MaxRuntimeInSeconds": 86_400}
    assert definition["ResourceConfig"]["VolumeSizeInGB"] == 30
    asked = tuning_request(
        config={"TrainingJobEarlyStoppingType": "Auto"}, StoppingCondition={"MaxRuntimeInSeconds": 9}
    )
    told = described(tuning_job(request=asked))
    assert told["HyperParameterTuningJobConfig"]["TrainingJobEarlyStoppingType"] == "Auto"
    assert told["TrainingJobDefinition"]["StoppingCondition"] == {"MaxRuntimeInSeconds": 9}
    told = described(tuning_job(request={**tuning_request(), "Autotune": {"Mode": "Enabled"}}))
    assert told["HyperParameterTuningJobConfig"]["TrainingJobEarlyStoppingType"] == "Auto"


def test_a_grid_is_described_with_the_number_of_its_points():
    config = {"Strategy": "Grid", "ResourceLimits": {"MaxParallelTrainingJobs": 2}}
    ranges = {"CategoricalParameterRanges": [{"Name": "a", "Values": ["1", "2", "3"]}]}
    job = tuning_job(request=tuning_request(ranges=ranges, config=config))
    limits = described(job)["HyperParameterTuningJobConfig"]["ResourceLimits"]
    assert limits == {"MaxParallelTrainingJobs": 2, "MaxNumberOfTrainingJobs": 3}


def several(**metrics):
    raw = tuning_request(config={"HyperParameterTuningJobObjective": None, "ParameterRanges": None})
    one = raw.pop("TrainingJobDefinition")
    raw["HyperParameterTuningJobConfig"] = {
        name: value for name, value in raw["HyperParameterTuningJobConfig"].items() if value is not None
    }
    raw["TrainingJobDefinitions"] = [
        {
            **one,
            "DefinitionName": name,
            "RoleArn": "arn:aws:iam::000000000000:role/R",
            "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
            "TuningObjective": {"Type": "Minimize", "MetricName": metric},
            "HyperParameterRanges": {"IntegerParameterRanges": RANGES["IntegerParameterRanges"]},
        }
        for name, metric in metrics.items()
    ]
    return tuning_job(request=raw)


def test_each_trial_of_several_definitions_has_the_metric_of_its_definition():
    job = several(fm="test:rmse", knn="test:mse")
    trials = [trial(1, 0.5, definition="fm"), trial(2, 0.25, definition="knn")]
    answer = described(job, trials)
    best = answer["BestTrainingJob"]
    assert best["TrainingJobDefinitionName"] == "knn"
    told = {"Type": "Minimize", "MetricName": "test:mse", "Value": 0.25}
    assert best["FinalHyperParameterTuningJobObjectiveMetric"] == told
    first = trial_summary(job, trials[0], None)
    assert first["FinalHyperParameterTuningJobObjectiveMetric"]["MetricName"] == "test:rmse"
    definitions = answer["TrainingJobDefinitions"]
    assert [one["StaticHyperParameters"][KEY] for one in definitions] == ["test:rmse", "test:mse"]
    assert definitions[0]["HyperParameterRanges"]["CategoricalParameterRanges"] == []
