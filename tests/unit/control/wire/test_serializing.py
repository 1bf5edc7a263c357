from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType

import pytest
from wire_builders import REQUEST_ID, read_by_botocore, sagemaker

from clary.base.errors import ContractError, WireError
from clary.contract.statuses import TrainingJobStatus
from clary.control.wire.models import Protocol, service
from clary.control.wire.serializing import MEMBERS, serialize, serialize_error

DESCRIBE = sagemaker("DescribeTrainingJob")
GET_ROLE = service("iam").operation("GetRole", Protocol.QUERY)


def body_of(operation, result):
    return json.loads(serialize(operation, result, request_id=REQUEST_ID).body)


def test_json_responses_carry_type_and_request_id():
    response = serialize(DESCRIBE, {"TrainingJobName": "a"}, request_id=REQUEST_ID)
    assert response.status == 200
    assert response.header("content-type") == "application/x-amz-json-1.1"
    assert response.header("x-amzn-requestid") == REQUEST_ID


def test_times_are_epoch_seconds_to_the_millisecond_in_any_zone():
    at = datetime(2024, 1, 31, 12, 20, 30, 123456, tzinfo=timezone(timedelta(hours=2)))
    assert body_of(DESCRIBE, {"CreationTime": at}) == {"CreationTime": 1706696430.123}


def test_none_is_dropped_at_every_depth_and_other_false_values_are_kept():
    result = {
        "FailureReason": None,
        "OutputDataConfig": {"KmsKeyId": "", "CompressionType": None},
        "EnableNetworkIsolation": False,
        "HyperParameters": {},
        "InputDataConfig": (),
        "TrainingJobStatus": TrainingJobStatus.IN_PROGRESS,
        "ModelArtifacts": MappingProxyType({"S3ModelArtifacts": "s3://a"}),
    }
    assert body_of(DESCRIBE, result) == {
        "OutputDataConfig": {"KmsKeyId": ""},
        "EnableNetworkIsolation": False,
        "HyperParameters": {},
        "InputDataConfig": [],
        "TrainingJobStatus": "InProgress",
        "ModelArtifacts": {"S3ModelArtifacts": "s3://a"},
    }


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"Nope": 1}, "no such member (at 'Nope')"),
        ({"OutputDataConfig": {"Nope": 1}}, "(at 'OutputDataConfig.Nope')"),
        ({"InputDataConfig": [{}, {"Nope": 1}]}, "(at 'InputDataConfig.2.Nope')"),
        ({"TrainingJobName": 5}, "expected a string, got int 5 (at 'TrainingJobName')"),
        ({"TrainingTimeInSeconds": 1.5}, "expected an int, got float 1.5"),
        ({"TrainingTimeInSeconds": True}, "expected an int, got bool"),
        ({"EnableNetworkIsolation": 1}, "expected a bool"),
        ({"CreationTime": 1700000000}, "expected an aware datetime, got int"),
        ({"CreationTime": datetime(2024, 1, 1)}, "expected an aware datetime"),
        ({"HyperParameters": {"a": 1}}, "(at 'HyperParameters.a')"),
        ({"HyperParameters": ["a"]}, "expected a mapping"),
        ({"InputDataConfig": {"a": 1}}, "expected a list"),
        ({"FinalMetricDataList": [{"Value": "x"}]}, "expected a number"),
    ],
)
def test_invalid_results_of_our_handlers_name_operation_and_member(result, words):
    with pytest.raises(ContractError) as caught:
        serialize(DESCRIBE, result, request_id=REQUEST_ID)
    assert caught.value.message.startswith("sagemaker DescribeTrainingJob cannot answer: ")
    assert words in caught.value.message


def test_operations_without_output_respond_with_an_empty_body():
    response = serialize(sagemaker("StopTrainingJob"), {}, request_id=REQUEST_ID)
    assert (response.status, response.body) == (200, b"")
    with pytest.raises(ContractError, match="has no output"):
        serialize(sagemaker("StopTrainingJob"), {"Anything": 1}, request_id=REQUEST_ID)


def test_special_floats_are_written_as_text():
    result = {"FinalMetricDataList": [{"MetricName": "loss", "Value": float("nan")}]}
    assert body_of(DESCRIBE, result)["FinalMetricDataList"][0]["Value"] == "NaN"


def test_query_responses_are_wrapped_in_the_service_s_namespace():
    created = datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC)
    role = {"Path": "/", "RoleName": "a", "RoleId": "i", "Arn": "arn:aws:iam::0:role/a", "CreateDate": created}
    response = serialize(GET_ROLE, {"Role": role}, request_id=REQUEST_ID)
    root = ET.fromstring(response.body)
    namespace = "{https://iam.amazonaws.com/doc/2010-05-08/}"
    assert root.tag == f"{namespace}GetRoleResponse"
    assert root.findtext(f"{namespace}GetRoleResult/{namespace}Role/{namespace}CreateDate") == "2024-01-31T10:20:30Z"
    assert root.findtext(f"{namespace}ResponseMetadata/{namespace}RequestId") == REQUEST_ID
    assert read_by_botocore(GET_ROLE, response)["Role"] == role


def test_every_character_in_xml_is_kept_or_replaced():
    role = {"RoleName": "<&>\"'\r\n\t\x00\x1b\ufffe\ud800 \U0001f600"}
    response = serialize(GET_ROLE, {"Role": role}, request_id=REQUEST_ID)
    found = read_by_botocore(GET_ROLE, response)["Role"]["RoleName"]
    assert found == "<&>\"'\r\n\t\ufffd\ufffd\ufffd\ufffd \U0001f600"


def test_unknown_members_of_xml_are_named():
    with pytest.raises(ContractError, match=r"at 'Role\.Nope'"):
        serialize(GET_ROLE, {"Role": {"Nope": 1}}, request_id=REQUEST_ID)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_errors_are_parsed_by_botocore_with_and_without_a_service(protocol):
    operation = service("cloudwatch").operation("GetMetricStatistics", protocol)
    error = WireError("MadeUpException", "1 validation error detected: <'\u00fc'>")
    for known in (None, operation.service):
        response = serialize_error(error, protocol=protocol, request_id=REQUEST_ID, service=known)
        assert response.status == 400
        assert response.header("x-amzn-RequestId") == REQUEST_ID
        found = read_by_botocore(operation, response)
        assert found["Error"]["Code"] == "MadeUpException"
        assert found["Error"]["Message"] == error.message
        assert found["ResponseMetadata"]["RequestId"] == REQUEST_ID


def test_json_errors_have_type_message_and_header():
    error = WireError("ResourceNotFoundException", "The specified log group does not exist.")
    response = serialize_error(error, protocol=Protocol.JSON_1_1, request_id=REQUEST_ID, service=service("logs"))
    assert json.loads(response.body) == {"__type": error.code, "message": error.message}
    assert response.header("x-amzn-errortype") == error.code


def test_json_errors_carry_further_members():
    error = WireError("MalformedQueryException", "wrong")
    error.details[MEMBERS] = {"queryCompileError": {"message": "here"}, "message": "never this one"}
    response = serialize_error(error, protocol=Protocol.JSON_1_1, request_id=REQUEST_ID, service=service("logs"))
    document = json.loads(response.body)
    assert document["queryCompileError"] == {"message": "here"}
    assert (document["__type"], document["message"]) == ("MalformedQueryException", "wrong")


def test_modelled_errors_also_use_the_message_member_of_the_model():
    error = WireError("ResourceInUse", "taken")
    response = serialize_error(error, protocol=Protocol.JSON_1_1, request_id=REQUEST_ID, service=service("sagemaker"))
    assert json.loads(response.body) == {"__type": "ResourceInUse", "message": "taken", "Message": "taken"}


@pytest.mark.parametrize("code", ["NoSuchEntity", "NoSuchEntityException"])
def test_the_model_names_code_and_status_of_query_errors(code):
    error = WireError(code, "The role with name x cannot be found.")
    response = serialize_error(error, protocol=Protocol.QUERY, request_id=REQUEST_ID, service=service("iam"))
    assert response.status == 404
    assert read_by_botocore(GET_ROLE, response)["Error"]["Code"] == "NoSuchEntity"
    assert b"<Type>Sender</Type>" in response.body


def test_query_compatible_errors_carry_the_codes_of_both_protocols():
    error = WireError("InvalidParameterValue", "no")
    response = serialize_error(error, protocol=Protocol.JSON_1_0, request_id=REQUEST_ID, service=service("cloudwatch"))
    assert json.loads(response.body)["__type"] == "InvalidParameterValueException"
    assert response.header("x-amzn-query-error") == "InvalidParameterValue;Sender"


def test_our_own_failures_are_blamed_on_the_receiver():
    error = WireError("InternalFailure", "request id 5", http_status=500)
    response = serialize_error(error, protocol=Protocol.QUERY, request_id=REQUEST_ID, service=service("sts"))
    assert (response.status, b"<Type>Receiver</Type>" in response.body) == (500, True)
