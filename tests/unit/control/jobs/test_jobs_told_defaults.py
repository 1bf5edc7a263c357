"""Defaults that Describe reports: a table decides on every default that botocore documents."""

import re

import botocore.session
import pytest

from clary.control.jobs.members.told_defaults import ALWAYS_TOLD, TOLD, TOLD_OTHERWISE, with_defaults
from clary.control.services.job_descriptions import DESCRIPTION_SHAPE

REQUEST_SHAPE = "CreateTrainingJobRequest"
MODEL = botocore.session.get_session().get_service_model("sagemaker")
# Sentences of the botocore model that state a default of the member itself, not of a related resource.
NAMES_A_DEFAULT = re.compile(r"\b(the default (is|value is|directory is)|default is|defaults to)\b", re.IGNORECASE)
REFUSED = ("ServerlessJobConfig", "MlflowConfig", "ModelPackageConfig")  # no job has these structures


def members_of(shape, prefix="", under_way=()):
    """Yield the path and the shape of every member of a structure."""
    if shape.type_name == "list":
        yield from members_of(shape.member, f"{prefix}[]", under_way)
    elif shape.type_name == "structure" and shape.name not in under_way:
        for name, member in shape.members.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path, member
            yield from members_of(member, path, (*under_way, shape.name))


def test_every_default_that_the_model_documents_is_decided_on():
    documented = {
        path
        for path, member in members_of(MODEL.shape_for(REQUEST_SHAPE))
        if NAMES_A_DEFAULT.search(re.sub("<[^>]+>", "", member.documentation)) and not path.startswith(REFUSED)
    }
    assert len(documented) > 5, "the model is written otherwise: this test reads nothing"
    assert documented - set(TOLD) - set(TOLD_OTHERWISE) == set()


def test_every_reported_default_is_a_member_of_the_response():
    known = {path for path, _ in members_of(MODEL.shape_for(DESCRIPTION_SHAPE))}
    assert set(TOLD) - known == set()


def test_defaults_replace_no_sent_value_and_change_no_argument_in_place():
    channel = {"ChannelName": "a", "DataSource": {"S3DataSource": {"S3Uri": "s3://b/p"}}, "CompressionType": "Gzip"}
    request = {"InputDataConfig": [channel], "ResourceConfig": {"InstanceCount": 1}}
    told = with_defaults(request)
    assert told["InputDataConfig"][0]["CompressionType"] == "Gzip"
    assert told["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3DataDistributionType"] == "FullyReplicated"
    assert channel["DataSource"] == {"S3DataSource": {"S3Uri": "s3://b/p"}}
    assert told["ResourceConfig"] == {"InstanceCount": 1}  # a structure that was not sent is not created


@pytest.mark.parametrize("member", ["DebugRuleConfigurations", "ProfilerRuleConfigurations"])
def test_a_rule_without_a_volume_is_described_with_a_volume_of_0_gb(member):
    rule = {"RuleConfigurationName": "Loss", "RuleEvaluatorImage": "rules:latest"}
    own = {**rule, "InstanceType": "ml.t3.medium", "VolumeSizeInGB": 30}
    assert with_defaults({member: [rule, own]})[member] == [{**rule, "VolumeSizeInGB": 0}, own]


def test_the_metrics_of_an_image_are_described_unless_the_request_names_metrics():
    specification = {"TrainingImage": "r/sagemaker-xgboost:1.7-1", "TrainingInputMode": "File"}
    told = with_defaults({"AlgorithmSpecification": specification})["AlgorithmSpecification"]
    assert "validation:rmse" in [item["Name"] for item in told["MetricDefinitions"]]
    assert "MetricDefinitions" not in specification
    own = [{"Name": "loss", "Regex": "loss=(.*)"}]
    told = with_defaults({"AlgorithmSpecification": {**specification, "MetricDefinitions": own}})
    assert told["AlgorithmSpecification"]["MetricDefinitions"] == own
    assert (
        "MetricDefinitions"
        not in with_defaults({"AlgorithmSpecification": {"TrainingImage": "pytorch:2"}})["AlgorithmSpecification"]
    )


@pytest.mark.parametrize("name", ALWAYS_TOLD)
def test_a_description_has_its_required_structures_whatever_a_store_has_lost(name):
    assert with_defaults({})[name]
