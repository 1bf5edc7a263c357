"""The CreateTrainingJob request of a trial, and its name."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tuning_trials import METRIC, tuning_job, tuning_request

from clary.control.tuning.trial_requests import (
    KEEP_ALIVE_S,
    is_kept_unasked,
    keep_alive_of,
    resources_of,
    trial_name,
    trial_requests,
)
from clary.control.tuning.tuning_request import OBJECTIVE_KEY, TuningRequest
from clary.control.wire.models import service

RESOURCES = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 7}


def definition(**members):
    return TuningRequest(tuning_request(**members)).definitions[0]


def request_of(parameters=None, **members):
    (made,) = trial_requests(definition(**members), parameters or {"lr": "0.1"}, "t-001-0000abcd")
    return made


def test_a_name_is_stable_and_differs_for_each_number_and_tuning_job():
    job = tuning_job()
    later = replace(job, created_at=job.created_at + timedelta(microseconds=1))
    names = {trial_name(one, number) for one in (job, later, tuning_job("other")) for number in range(1, 200)}
    assert len(names) == 3 * 199
    assert trial_name(job, 7) == trial_name(tuning_job(), 7)
    assert trial_name(job, 7).startswith("tuned-007-")


def test_a_name_fits_for_the_longest_tuning_job_and_many_trials():
    assert len(trial_name(tuning_job("x" * 32), 99_999)) <= 63


def test_hyperparameters_are_static_ones_tuned_ones_and_the_name_of_the_objective():
    assert request_of({"lr": "0.1", "layers": "3"})["HyperParameters"] == {
        "epochs": "5",
        "api_token": "s3cr3t",
        "lr": "0.1",
        "layers": "3",
        OBJECTIVE_KEY: METRIC,
    }
    assert request_of(StaticHyperParameters=None)["HyperParameters"] == {"lr": "0.1", OBJECTIVE_KEY: METRIC}


def test_members_that_a_training_job_has_too_are_passed_on_and_no_others():
    members = {
        "RoleArn": "arn:aws:iam::000000000000:role/R",
        "InputDataConfig": [{"ChannelName": "train"}],
        "VpcConfig": {"Subnets": ["s"], "SecurityGroupIds": ["g"]},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": True,
        "EnableManagedSpotTraining": False,
        "RetryStrategy": {"MaximumRetryAttempts": 1},
        "Environment": {"A": "b"},
    }
    made = request_of(**members, ResourceConfig=RESOURCES, DefinitionName="d", TuningObjective={"MetricName": METRIC})
    assert {name: made[name] for name in members} == members
    rest = {"TrainingJobName", "AlgorithmSpecification", "HyperParameters", "ResourceConfig"}
    assert set(made) == {*members, *rest}
    assert made["TrainingJobName"] == "t-001-0000abcd"


def test_every_member_that_definition_and_training_job_share_is_passed_on():
    model = service("sagemaker").model
    shared = set(model.shape_for("HyperParameterTrainingJobDefinition").members) & set(
        model.shape_for("CreateTrainingJobRequest").members
    )
    given = {name: {"S3Uri": "s3://bucket/c"} if name == "CheckpointConfig" else {"given": name} for name in shared}
    made = request_of(**given)
    assert {name for name in shared if name not in made} == set()
    assert all(made[name] == given[name] for name in shared - {"CheckpointConfig", "ResourceConfig"})
    assert made["ResourceConfig"]["given"] == "ResourceConfig"
    assert made["CheckpointConfig"]["S3Uri"].startswith("s3://bucket/c/")


@pytest.mark.parametrize("uri", ["s3://bucket/checkpoints", "s3://bucket/checkpoints/"])
def test_each_trial_has_its_own_prefix_of_checkpoints(uri):
    made = request_of(CheckpointConfig={"S3Uri": uri, "LocalPath": "/opt/c"})
    assert made["CheckpointConfig"] == {"S3Uri": "s3://bucket/checkpoints/t-001-0000abcd", "LocalPath": "/opt/c"}
    assert "CheckpointConfig" not in request_of()


def test_hosts_wait_for_the_next_trial_unless_the_definition_sets_another_period():
    assert request_of(ResourceConfig=RESOURCES)["ResourceConfig"]["KeepAlivePeriodInSeconds"] == KEEP_ALIVE_S
    for seconds in (0, 600):
        own = {**RESOURCES, "KeepAlivePeriodInSeconds": seconds}
        assert request_of(ResourceConfig=own)["ResourceConfig"] == own
        assert keep_alive_of(definition(ResourceConfig=own)) == seconds
    assert keep_alive_of(definition(ResourceConfig=RESOURCES)) is None
    assert keep_alive_of(definition(HyperParameterTuningResourceConfig=RESOURCES)) is None
    spot = request_of(ResourceConfig=RESOURCES, EnableManagedSpotTraining=True)
    assert spot["ResourceConfig"] == RESOURCES


def test_only_a_period_that_the_service_adds_is_unasked():
    own = {**RESOURCES, "KeepAlivePeriodInSeconds": 0}
    assert is_kept_unasked(definition(ResourceConfig=RESOURCES))
    assert not is_kept_unasked(definition(ResourceConfig=own))
    assert not is_kept_unasked(definition(ResourceConfig=RESOURCES, EnableManagedSpotTraining=True))
    assert resources_of(definition(ResourceConfig=RESOURCES)) == (RESOURCES,)
    assert resources_of(definition(ResourceConfig=own)) == (own,)


def test_resources_of_the_tuning_job_apply_to_each_training_job():
    own = {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeKmsKeyId": "k"}
    made = request_of(HyperParameterTuningResourceConfig=own)["ResourceConfig"]
    assert made == {**own, "VolumeSizeInGB": 30, "KeepAlivePeriodInSeconds": KEEP_ALIVE_S}


def test_there_is_a_request_for_each_instance_config_in_their_order():
    kinds = [
        {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1, "VolumeSizeInGB": 9},
        {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 5},
        {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 5},
    ]
    own = {"InstanceConfigs": kinds, "VolumeKmsKeyId": "k", "AllocationStrategy": "Prioritized"}
    given = definition(HyperParameterTuningResourceConfig=own)
    made = [one["ResourceConfig"] for one in trial_requests(given, {"lr": "0.1"}, "name")]
    assert made == [{**kind, "VolumeKmsKeyId": "k", "KeepAlivePeriodInSeconds": KEEP_ALIVE_S} for kind in kinds]


def test_a_definition_is_not_changed_by_the_request_of_a_trial():
    given = definition(ResourceConfig=dict(RESOURCES), CheckpointConfig={"S3Uri": "s3://bucket/c"})
    before = repr(given)
    trial_requests(given, {"lr": "0.1"}, "name")[0]["AlgorithmSpecification"]["TrainingImage"] = "changed"
    assert repr(given) == before
