from __future__ import annotations

import math
from typing import Any

import pytest
from botocore.model import ServiceModel
from wire_builders import sagemaker

from clary.base.errors import WireError
from clary.control.wire.models import Operation, Protocol, Service, service
from clary.control.wire.validation import LENIENT_MAX_LENGTH, MAX_SHOWN_ERRORS, validate

CREATE = sagemaker("CreateTrainingJob")
NAME_PATTERN = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"


def good() -> dict[str, Any]:
    return {
        "TrainingJobName": "job-1",
        "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
        "OutputDataConfig": {"S3OutputPath": "s3://clary/out"},
        "AlgorithmSpecification": {"TrainingImage": "pytorch:2.13", "TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "HyperParameters": {"epochs": "3"},
    }


def message_of(params: dict[str, Any], operation: Operation = CREATE, **kwargs: Any) -> str:
    with pytest.raises(WireError) as caught:
        validate(operation, params, **kwargs)
    assert caught.value.http_status == 400
    assert caught.value.code == operation.validation_code
    return caught.value.message


def test_a_valid_request_passes():
    validate(CREATE, good())


def test_a_missing_member_is_null():
    params = good()
    del params["RoleArn"]
    assert message_of(params) == (
        "1 validation error detected: Value null at 'roleArn' failed to satisfy constraint: Member must not be null"
    )


def test_a_bad_name_is_quoted_with_its_pattern():
    assert message_of(good() | {"TrainingJobName": "bad_name!"}) == (
        "1 validation error detected: Value 'bad_name!' at 'trainingJobName' failed to satisfy constraint: "
        f"Member must satisfy regular expression pattern: {NAME_PATTERN}"
    )


@pytest.mark.parametrize("name", ["job\n", "\njob", "job-", "-job", "a--", "\u00e4", "\u0661"])
def test_a_pattern_must_match_the_entire_value_and_digits_are_ascii(name):
    assert "regular expression" in message_of(good() | {"TrainingJobName": name})


def test_every_broken_constraint_is_listed():
    params = good() | {"TrainingJobName": "x" * 64}
    params["ResourceConfig"] = {"InstanceType": "ml.g5.xlarge", "InstanceCount": -1, "VolumeSizeInGB": -2}
    params["StoppingCondition"] = {"MaxRuntimeInSeconds": 0}
    message = message_of(params)
    assert message.startswith("4 validation errors detected: ")
    assert (
        "at 'trainingJobName' failed to satisfy constraint: Member must have length less than or equal to 63" in message
    )
    assert (
        "Value '-1' at 'resourceConfig.instanceCount' failed to satisfy constraint: Member must have value" in message
    )
    assert "Value '0' at 'stoppingCondition.maxRuntimeInSeconds' failed" in message
    assert message.count("; ") == 3


def test_enumerations_name_every_value():
    params = good()
    params["AlgorithmSpecification"]["TrainingInputMode"] = "Fast"
    assert message_of(params) == (
        "1 validation error detected: Value 'Fast' at 'algorithmSpecification.trainingInputMode' failed to satisfy "
        "constraint: Member must satisfy enum value set: [Pipe, File, FastFile]"
    )


@pytest.mark.parametrize("instance_type", ["ml.p2.xlarge", "ml.h100.8x", "local", "local_gpu", "my-box"])
def test_any_instance_type_passes_unless_the_caller_is_strict(instance_type):
    params = good()
    params["ResourceConfig"]["InstanceType"] = instance_type
    validate(CREATE, params)
    if instance_type != "ml.p2.xlarge":
        message = message_of(params, lenient_enums=frozenset())
        assert f"Value '{instance_type}' at 'resourceConfig.instanceType' failed" in message
        assert "Member must satisfy enum value set: [ml.m4.xlarge, " in message


@pytest.mark.parametrize("instance_type", ["", "x" * (LENIENT_MAX_LENGTH + 1)])
def test_a_lenient_value_still_has_a_length_limit(instance_type):
    params = good()
    params["ResourceConfig"]["InstanceType"] = instance_type
    assert "at 'resourceConfig.instanceType' failed to satisfy constraint: Member must have length" in message_of(
        params
    )


def test_map_values_are_refused_with_the_message_of_sagemaker():
    assert message_of(good() | {"HyperParameters": {"ok": "1", "long": "x" * 2501}}) == (
        f"1 validation error detected: Value '{{long={'x' * 1018}...' at 'hyperParameters' failed to satisfy "
        "constraint: Map value must satisfy constraint: [Member must have length less than or equal to 2500, "
        "Member must have length greater than or equal to 0, Member must satisfy regular expression pattern: .*]"
    )


def test_map_keys_are_refused_with_the_message_of_sagemaker():
    message = message_of(good() | {"Environment": {"1x": "v"}})
    assert (
        "Value '{1x=v}' at 'environment' failed to satisfy constraint: Map keys must satisfy constraint: [" in message
    )


def test_too_many_entries_are_refused():
    message = message_of(good() | {"HyperParameters": {f"k{number}": "v" for number in range(101)}})
    assert (
        "at 'hyperParameters' failed to satisfy constraint: Member must have length less than or equal to 100"
        in message
    )


def test_list_elements_are_named_by_their_position():
    params = good() | {"Tags": [{"Key": "a", "Value": "b"}, {"Value": "b"}]}
    assert "Value null at 'tags.2.member.key' failed to satisfy constraint: Member must not be null" in message_of(
        params
    )


def test_scalar_elements_are_shown():
    message = message_of(good() | {"VpcConfig": {"SecurityGroupIds": ["sg-1", "sg 2"], "Subnets": ["subnet-1"]}})
    assert "Value '[sg 2]' at 'vpcConfig.securityGroupIds' failed to satisfy constraint: Member must satisfy" in message


def test_null_elements_are_refused():
    message = message_of(good() | {"HyperParameters": {"a": None}, "Tags": [None]})
    assert "Value null at 'hyperParameters.a.member' failed" in message
    assert "Value null at 'tags.1.member' failed" in message


def test_tags_may_be_in_any_script_but_not_in_control_characters():
    validate(CREATE, good() | {"Tags": [{"Key": "\u00fc\u4e2d\u0434 1", "Value": "x@y+z"}]})
    message = message_of(good() | {"Tags": [{"Key": "a\tb", "Value": ""}]})
    assert "at 'tags.1.member.key' failed to satisfy constraint: Member must satisfy regular expression" in message


def test_long_lists_of_errors_are_truncated_with_the_total_count():
    message = message_of(good() | {"Tags": [{} for _ in range(50)]})
    assert message.startswith("100 validation errors detected: ")
    assert message.endswith(f"; and {100 - MAX_SHOWN_ERRORS} more")


def test_query_services_use_the_code_validation_error():
    operation = service("iam").operation("GetRole", Protocol.QUERY)
    assert message_of({}, operation).startswith("1 validation error detected: Value null at 'roleName'")
    assert operation.validation_code == "ValidationError"


@pytest.mark.parametrize(("name", "operation"), [("logs", "GetLogEvents"), ("ecr", "GetAuthorizationToken")])
def test_services_whose_models_name_invalid_parameters_use_this_code(name, operation):
    assert service(name).operation(operation, Protocol.JSON_1_1).validation_code == "InvalidParameterException"
    assert service("sagemaker").operation("AddTags", Protocol.JSON_1_1).validation_code == "ValidationException"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_special_floats_are_refused(value):
    operation = service("cloudwatch").operation("PutMetricData", Protocol.JSON_1_0)
    params = {"Namespace": "n", "MetricData": [{"MetricName": "m", "Value": value}]}
    assert "at 'metricData.1.member.value' failed to satisfy constraint: Member must be a finite" in message_of(
        params, operation
    )


def made_up_operation(shapes: dict[str, Any]) -> Operation:
    description = {
        "metadata": {"protocol": "json", "apiVersion": "2020-01-01"},
        "operations": {"Op": {"name": "Op", "http": {}, "input": {"shape": "In"}}},
        "shapes": shapes,
    }
    return Service("made-up", ServiceModel(description)).operation("Op", Protocol.JSON_1_1)


def test_secrets_are_not_repeated_in_messages():
    operation = made_up_operation(
        {
            "In": {"type": "structure", "members": {"Secret": {"shape": "Secret"}}},
            "Secret": {"type": "string", "max": 3, "sensitive": True},
        }
    )
    assert message_of({"Secret": "hunter2"}, operation) == (
        "1 validation error detected: Value at 'secret' failed to satisfy constraint: "
        "Member must have length less than or equal to 3"
    )


def test_unions_hold_exactly_one_member():
    operation = made_up_operation(
        {
            "In": {"type": "structure", "members": {"Either": {"shape": "Either"}}},
            "Either": {"type": "structure", "union": True, "members": {"A": {"shape": "S"}, "B": {"shape": "S"}}},
            "S": {"type": "string"},
        }
    )
    validate(operation, {"Either": {"A": "x"}})
    assert "Value '{A=x, B=y}' at 'either' failed" in message_of({"Either": {"A": "x", "B": "y"}}, operation)
    assert "Value '{}' at 'either' failed" in message_of({"Either": {}}, operation)


def test_recursive_shapes_are_checked_at_every_depth():
    expression: dict[str, Any] = {"Operator": "Nope"}
    for _ in range(5):
        expression = {"SubExpressions": [expression]}
    message = message_of({"Resource": "TrainingJob", "SearchExpression": expression}, sagemaker("Search"))
    path = "searchExpression" + ".subExpressions.1.member" * 5 + ".operator"
    assert f"Value 'Nope' at '{path}' failed to satisfy constraint" in message


def test_operations_without_input_accept_any_parameters():
    validate(service("iam").operation("GetAccountSummary", Protocol.QUERY), {})
