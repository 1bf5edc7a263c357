"""Requests that are refused as a whole, with their messages, and warnings; some requests are recorded from clients."""

import json
from pathlib import Path

import pytest

from clary.base.errors import WireError
from clary.control.jobs import validation
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.members.member import Site
from clary.testing.control_plane import request_of

ASSETS = next(parent for parent in Path(__file__).resolve().parents if parent.name == "tests") / "assets" / "requests"
RECORDED = sorted(ASSETS.glob("*.CreateTrainingJob.json"))
SITE = Site()
REFUSED = {
    "hf-trcomp-dist": "distribution 'pytorchxla' is not supported",
    "pt-trcomp": "distribution 'pytorchxla' is not supported",
    "pt-pipe": "Channel 'val': FastFile takes S3Prefix only.",
    "pt-extras": "EnableInterContainerTrafficEncryption asks for encryption that is not done here",
    "v3-spot": "EnableInterContainerTrafficEncryption asks for encryption that is not done here",
    "pt-infra": "RemoteDebugConfig.EnableRemoteDebug is not supported",
    "v3-with": "RemoteDebugConfig.EnableRemoteDebug is not supported",
    "pt-spot-nowait": "Invalid MaxWaitTimeInSeconds. It must be present",
}


def case_of(path):
    return path.name.partition(".")[0]


@pytest.mark.parametrize("path", RECORDED, ids=case_of)
def test_recorded_requests_are_accepted_except_those_with_a_listed_reason(path):
    request = json.loads(path.read_text())
    words = REFUSED.get(case_of(path))
    if words is None:
        validation.check(request, SITE)
        assert all(isinstance(warning, str) and warning for warning in validation.warnings(request, SITE))
    else:
        assert refusal(request).startswith(words)


def test_all_recorded_requests_are_seen():
    assert len(RECORDED) == 80, "of 84; the others create tuning jobs or update a job"
    assert set(REFUSED) <= {case_of(path) for path in RECORDED}


def refusal(request):
    with pytest.raises(WireError) as error:
        validation.check(request, SITE)
    assert error.value.code == "ValidationException"
    return error.value.message


def channel(name="train", *, uri="s3://b/p", source=None, **members):
    return {"ChannelName": name, "DataSource": source or {"S3DataSource": {"S3Uri": uri}}, **members}


def algorithm(**members):
    return {"AlgorithmSpecification": {"TrainingImage": "generic:1", **members}}


def groups(*items, **members):
    listed = [
        {"InstanceGroupName": name, "InstanceType": "ml.m5.large", "InstanceCount": count} for name, count in items
    ]
    return {"ResourceConfig": {"InstanceGroups": listed, "VolumeSizeInGB": 1, **members}}


NULL_MEMBER = "1 validation error detected: Value null at '{}' failed to satisfy constraint: Member must not be null"
CASES = [
    ({"ServerlessJobConfig": {"x": 1}}, "ServerlessJobConfig is not supported: serverless customisation jobs run"),
    ({"MlflowConfig": {"x": 1}}, "MlflowConfig is not supported: managed MLflow servers are an Amazon service"),
    ({"ModelPackageConfig": {"x": 1}}, "ModelPackageConfig is not supported: the model registry"),
    ({"AlgorithmSpecification": None}, NULL_MEMBER.format("algorithmSpecification")),
    ({"ResourceConfig": None}, NULL_MEMBER.format("resourceConfig")),
    ({"ResourceConfig": {}}, "ResourceConfig needs InstanceType and InstanceCount, or InstanceGroups."),
    ({"AlgorithmSpecification": {}}, "You must specify either an AlgorithmName or a TrainingImage in your request."),
    ({"StoppingCondition": None}, NULL_MEMBER.format("stoppingCondition")),
    (algorithm(AlgorithmName="market"), "AlgorithmName is not supported: marketplace algorithms"),
    (
        {"AlgorithmSpecification": {"TrainingInputMode": "File"}},
        "You must specify either an AlgorithmName or a TrainingImage in your request.",
    ),
    (algorithm(ContainerArguments=["x"]), "ContainerArguments without ContainerEntrypoint: name the program"),
    (
        groups(("a", 1), InstanceType="ml.m5.large"),
        "ResourceConfig takes either InstanceGroups or InstanceType and InstanceCount.",
    ),
    (
        {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 0}},
        "ResourceConfig needs InstanceType and InstanceCount, or InstanceGroups.",
    ),
    ({"ResourceConfig": {"InstanceCount": 1}}, "ResourceConfig needs InstanceType and InstanceCount"),
    (groups(("a", 1), ("a", 1)), "Instance group names must be unique; 'a' occurs twice."),
    (groups(("a", 1), ("b", 0)), "Instance group 'b' has InstanceCount 0; each group needs at least 1."),
    (
        {
            **groups(("a", 1)),
            "InputDataConfig": [
                channel(source={"S3DataSource": {"S3Uri": "s3://b/p", "InstanceGroupNames": ["other"]}})
            ],
        },
        "Channel 'train' names instance group 'other', which ResourceConfig does not have.",
    ),
    (
        {"EnableManagedSpotTraining": True},
        "Invalid MaxWaitTimeInSeconds. It must be present and be greater than or equal to MaxRuntimeInSeconds when "
        "EnableManagedSpotTraining is true; MaxWaitTimeInSeconds is absent, MaxRuntimeInSeconds is 3600.",
    ),
    (
        {
            "EnableManagedSpotTraining": True,
            "StoppingCondition": {"MaxRuntimeInSeconds": 10, "MaxWaitTimeInSeconds": 9},
        },
        "Invalid MaxWaitTimeInSeconds.",
    ),
    (
        {"StoppingCondition": {"MaxWaitTimeInSeconds": 9}},
        "Invalid MaxWaitTimeInSeconds. It is only supported when EnableManagedSpotTraining is set to true, or with a "
        "RetryStrategy: set one of them, or leave MaxWaitTimeInSeconds out.",
    ),
    (
        {
            "RetryStrategy": {"MaximumRetryAttempts": 2},
            "StoppingCondition": {"MaxRuntimeInSeconds": 10, "MaxWaitTimeInSeconds": 9},
        },
        "Invalid MaxWaitTimeInSeconds. It must be greater than or equal to MaxRuntimeInSeconds with a RetryStrategy; "
        "MaxWaitTimeInSeconds is 9, MaxRuntimeInSeconds is 10.",
    ),
    ({"InputDataConfig": [channel(), channel()]}, "Channel names must be unique; 'train' occurs twice."),
    (
        {"InputDataConfig": [channel(source={"DatasetSource": {"DatasetArn": "arn"}})]},
        "Channel 'train' needs exactly one of S3DataSource and FileSystemDataSource; it has DatasetSource.",
    ),
    ({"InputDataConfig": [{"ChannelName": "train"}]}, "Channel 'train' needs exactly one of S3DataSource"),
    ({"InputDataConfig": [channel("..")]}, "'..' is not a valid channel name."),
    (
        {"InputDataConfig": [channel(uri="https://b/p")]},
        "Channel 'train': S3Uri must be s3://bucket/prefix, got 'https://b/p': it does not start with s3://.",
    ),
    (
        {
            "InputDataConfig": [
                channel(source={"S3DataSource": {"S3Uri": "s3://b/p", "S3DataType": "AugmentedManifestFile"}})
            ]
        },
        "Channel 'train': S3DataType AugmentedManifestFile is not supported; use S3Prefix.",
    ),
    (
        {"OutputDataConfig": {"S3OutputPath": "https://bucket/out"}},
        "OutputDataConfig.S3OutputPath must be s3://bucket/prefix, got 'https://bucket/out': it does not start",
    ),
    ({"CheckpointConfig": {"S3Uri": "https://b/c"}}, "CheckpointConfig.S3Uri must be s3://bucket/prefix"),
    ({"InputDataConfig": [channel(uri="s3://../x")]}, "Channel 'train': S3Uri must be s3://bucket/prefix"),
    ({"OutputDataConfig": {"S3OutputPath": "s3://b/../x"}}, "OutputDataConfig.S3OutputPath must be s3://bucket/prefix"),
    ({"OutputDataConfig": {"S3OutputPath": "s3://b@h/x"}}, "OutputDataConfig.S3OutputPath must be s3://bucket/prefix"),
    (
        {"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/../../proc/self"}},
        "CheckpointConfig.LocalPath '/opt/ml/../../proc/self' cannot be used: the host itself uses this folder",
    ),
    (
        {**algorithm(), "HyperParameters": {"sagemaker_program": "t.py", "sagemaker_submit_directory": '"/etc"'}},
        "sagemaker_submit_directory is '/etc': expected s3://bucket/key or a path below /opt/ml.",
    ),
    (
        {**algorithm(), "HyperParameters": {"sagemaker_program": "../train.py"}},
        "sagemaker_program: ",
    ),
    (
        {**algorithm(), "Environment": {"SAGEMAKER_PROGRAM": "../train.py"}},
        "Environment's SAGEMAKER_PROGRAM: the entry",
    ),
    (
        {
            **groups(("a", 1)),
            **algorithm(),
            "HyperParameters": {
                "sagemaker_torch_distributed_enabled": "true",
                "sagemaker_distribution_instance_groups": '["b"]',
            },
        },
        "sagemaker_distribution_instance_groups names 'b', but the job has only the groups a",
    ),
    ({"HyperParameters": {"x": "\0"}}, "hyperparameter 'x' holds a NUL character"),
]


@pytest.mark.parametrize(("members", "words"), CASES, ids=[words[:60] for _, words in CASES])
def test_a_request_that_makes_no_sense_is_refused_with_its_message(members, words):
    assert refusal(request_of(**members)).startswith(words)


def test_a_plain_request_is_accepted_without_warnings():
    validation.check(request_of(), SITE)
    assert validation.warnings(request_of(), SITE) == ()


def test_a_wait_limit_is_accepted_with_a_retry_strategy_without_spot_capacity():
    limits = {"MaxRuntimeInSeconds": 10, "MaxWaitTimeInSeconds": 10}
    request = request_of(RetryStrategy={"MaximumRetryAttempts": 2}, StoppingCondition=limits)
    validation.check(request, SITE)
    assert validation.warnings(request, SITE) == ()


def test_the_built_in_xgboost_joins_several_hosts_by_itself():
    members = {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2}}
    request = request_of(AlgorithmSpecification={"TrainingImage": "r/sagemaker-xgboost:1.7-1"}, **members)
    validation.check(request, SITE)
    assert not any("no distribution" in sentence for sentence in validation.warnings(request, SITE))


def test_hyperparameters_choose_no_launcher_for_a_job_with_a_command():
    request = request_of(HyperParameters={"sagemaker_program": "../train.py"})
    validation.check(request, SITE)


WARNINGS = [
    ({**algorithm(), "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2}}, "2 hosts and no dist"),
    (
        {"HyperParameters": {"a": "1", "b": "it's"}, "InputDataConfig": [channel("sm_drivers")]},
        "hyperparameter 'b' holds a single quote: the SDK's environment script breaks on it",
    ),
    ({"VpcConfig": {"Subnets": ["s"]}}, "VpcConfig is accepted and has no effect"),
    (
        {
            "ResourceConfig": {"InstanceType": "t", "InstanceCount": 1, "KeepAlivePeriodInSeconds": 60},
            "EnableManagedSpotTraining": True,
        },
        "KeepAlivePeriodInSeconds has no effect on spot capacity",
    ),
    (
        {
            "DebugRuleConfigurations": [
                {
                    "RuleConfigurationName": "Loss",
                    "RuleParameters": {"action_json": '[{\\"endpoint\\": \\"a@b.org\\", \\"name\\": \\"email\\"}]'},
                }
            ]
        },
        "rule Loss: email cannot be sent from here",
    ),
    ({"InputDataConfig": [channel(InputMode="FastFile")]}, "channel train: FastFile is fetched whole before the start"),
    (
        {
            **algorithm(),
            "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1},
            "HyperParameters": {"sagemaker_torch_distributed_enabled": "true"},
        },
        "ml.p4d.24xlarge: on SageMaker this type has EFA",
    ),
]


@pytest.mark.parametrize(("members", "words"), WARNINGS, ids=[words[:50] for _, words in WARNINGS])
def test_a_member_that_does_not_have_its_stated_effect_is_warned_of_once(members, words):
    found = validation.warnings(request_of(**members), SITE)
    assert len(found) == 1
    assert found[0].startswith(words)


@pytest.mark.parametrize(
    "members",
    [
        {"HyperParameters": {"b": "it's"}},
        {"RetryStrategy": {"MaximumRetryAttempts": 1}},
        {"ResourceConfig": {"InstanceType": "t", "InstanceCount": 1, "KeepAlivePeriodInSeconds": 60}},
        {"EnableManagedSpotTraining": False},
    ],
)
def test_a_member_that_takes_effect_is_not_warned_of(members):
    assert validation.warnings(request_of(**members), SITE) == ()


def test_an_empty_stopping_condition_means_a_limit_of_one_day():
    request = request_of(StoppingCondition={})
    validation.check(request, SITE)
    assert JobRequest(request).max_runtime_s == 86_400
