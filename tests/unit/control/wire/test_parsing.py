from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from wire_builders import form_request, json_request, sagemaker

from clary.base.errors import WireError
from clary.control.wire.compression import MAX_DECOMPRESSED_BYTES
from clary.control.wire.messages import HttpRequest
from clary.control.wire.models import Protocol, service
from clary.control.wire.parsing import parse, unknown_members
from clary.control.wire.scalars import MisfitError, from_epoch, parse_time

CREATE = sagemaker("CreateTrainingJob")
LIST = sagemaker("ListTrainingJobs")
PUT_METRICS = service("cloudwatch").operation("PutMetricData", Protocol.JSON_1_0)
PUT_METRICS_FORM = service("cloudwatch").operation("PutMetricData", Protocol.QUERY)


def parse_json(body, operation=CREATE):
    return parse(json_request(operation.name, body), operation)


def refused(body, operation=CREATE):
    with pytest.raises(WireError) as caught:
        parse_json(body, operation)
    assert caught.value.code == "SerializationException"
    assert caught.value.http_status == 400
    return caught.value.message


def test_an_empty_body_gives_no_parameters():
    assert parse_json(b"", LIST) == {}
    assert parse_json(b"{}", LIST) == {}


def test_unknown_members_are_ignored_and_null_members_are_absent():
    assert parse_json({"TrainingJobName": "a", "FromTheFuture": {"x": [1]}, "RoleArn": None}) == {
        "TrainingJobName": "a"
    }


def test_members_that_the_model_lacks_can_be_named():
    body = {
        "TrainingJobName": "a",
        "FromTheFuture": {"x": [1]},
        "RoleArn": None,
        "HyperParameters": {"any": "thing"},
        "InputDataConfig": [{"ChannelName": "a"}, {"ChannelName": "b", "Colour": "red", "Size": None}],
    }
    request = json_request("CreateTrainingJob", body)
    assert unknown_members(request, CREATE, parse(request, CREATE)) == ("FromTheFuture", "InputDataConfig.Colour")
    assert unknown_members(json_request("CreateTrainingJob", b""), CREATE, {}) == ()


def test_null_elements_are_kept_for_validation_to_refuse():
    assert parse_json({"HyperParameters": {"a": None}, "Tags": [None]}) == {
        "HyperParameters": {"a": None},
        "Tags": [None],
    }


def test_epoch_seconds_become_aware_datetimes():
    params = parse_json({"CreationTimeAfter": 1700000000.25}, LIST)
    assert params == {"CreationTimeAfter": datetime(2023, 11, 14, 22, 13, 20, 250000, tzinfo=UTC)}


def test_integers_may_be_written_as_floats():
    assert parse_json(b'{"MaxResults": 1e1}', LIST) == {"MaxResults": 10}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"TrainingJobName": 5}, "NUMBER_VALUE can not be converted to a String (at 'TrainingJobName')"),
        ({"TrainingJobName": True}, "TRUE_VALUE can not be converted to a String"),
        (
            {"HyperParameters": {"epochs": 3}},
            "NUMBER_VALUE can not be converted to a String (at 'HyperParameters.epochs')",
        ),
        ({"HyperParameters": []}, "START_ARRAY can not be converted to a map (at 'HyperParameters')"),
        ({"ResourceConfig": "x"}, "STRING_VALUE can not be converted to a structure (at 'ResourceConfig')"),
        ({"ResourceConfig": {"InstanceCount": "2"}}, "STRING_VALUE can not be converted to an Integer"),
        ({"ResourceConfig": {"InstanceCount": 1.5}}, "(at 'ResourceConfig.InstanceCount')"),
        ({"ResourceConfig": {"InstanceCount": True}}, "TRUE_VALUE can not be converted to an Integer"),
        ({"ResourceConfig": {"InstanceCount": 2**31}}, "32 bits"),
        ({"EnableManagedSpotTraining": "true"}, "STRING_VALUE can not be converted to a Boolean"),
        ({"Tags": {"a": "b"}}, "START_OBJECT can not be converted to a list"),
        ({"Tags": [{"Key": "a", "Value": "b"}, {"Key": 5}]}, "(at 'Tags.2.Key')"),
    ],
)
def test_wrong_types_are_refused_with_their_path(body, words):
    assert words in refused(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"TrainingJobName": "a"', "not JSON"),
        (b"not json", "not JSON"),
        (b"[]", "JSON object"),
        (b"5", "JSON object"),
        (b"null", "JSON object"),
        (b'{"TrainingJobName": "\xff\xfe"}', "not UTF-8"),
        (b'\xef\xbb\xbf{"TrainingJobName": "a"}', "not JSON"),
        (b'{"TrainingJobName": "a", "TrainingJobName": "b"}', "duplicate key 'TrainingJobName'"),
        (b'{"HyperParameters": {"a": "1", "a": "2"}}', "duplicate key 'a'"),
        (b'{"HyperParameters": NaN}', "NaN is not a number"),
        (b'{"HyperParameters": -Infinity}', "-Infinity is not a number"),
        (b'{"TrainingJobName": "\\ud800"}', "surrogate"),
        (b'{"HyperParameters": {"a": "\\u0000"}}', "U+0000"),
        (b'{"ResourceConfig": {"InstanceCount": ' + b"9" * 5000 + b"}}", "not JSON"),
        (b'{"ResourceConfig": {"InstanceCount": 1e400}}', "can not be converted to an Integer"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_documents_that_parsers_could_read_differently_are_refused(body, words):
    assert words in refused(body)


def test_the_text_of_an_escaped_nul_escape_is_not_a_nul():
    params = parse_json(b'{"HyperParameters": {"a": "\\\\u0000 \\u00e9"}}')
    assert params == {"HyperParameters": {"a": "\\u0000 \u00e9"}}


def test_a_pair_of_surrogate_escapes_is_one_character():
    assert parse_json(b'{"HyperParameters": {"a": "\\ud83d\\ude00"}}') == {"HyperParameters": {"a": "\U0001f600"}}


def test_deep_recursive_members_are_refused():
    body = b'{"Resource": "TrainingJob", "SearchExpression": ' + b'{"SubExpressions": [' * 3000 + b"]}" * 3000 + b"}"
    assert "nested too deeply" in refused(body, sagemaker("Search"))


@pytest.mark.parametrize("seconds", [1e30, -1e30, 10**400])
def test_times_beyond_the_calendar_are_refused(seconds):
    assert "timestamp" in refused(json.dumps({"CreationTimeAfter": seconds}).encode(), LIST)


def test_times_as_text_are_refused_in_json():
    assert "expected epoch seconds" in refused({"CreationTimeAfter": "2024-01-01T00:00:00Z"}, LIST)


def test_floats_out_of_range_are_refused():
    body = b'{"Namespace": "x", "MetricData": [{"MetricName": "m", "Value": 1e999}]}'
    assert "too large for a Double (at 'MetricData.1.Value')" in refused(body, PUT_METRICS)


def test_gzip_bodies_are_read():
    body = gzip.compress(b'{"Namespace": "x"}', mtime=0)
    request = HttpRequest("POST", "/", "", [("Content-Encoding", "gzip")], body)
    assert parse(request, PUT_METRICS) == {"Namespace": "x"}


@pytest.mark.parametrize(
    ("encoding", "body", "words"),
    [
        ("gzip", gzip.compress(b" " * (MAX_DECOMPRESSED_BYTES + 1), mtime=0), "larger than"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-4], "ends too early"),
        ("gzip", b"{}", "not gzip"),
        ("br", b"{}", "'br' is not understood"),
    ],
)
def test_bad_compression_is_refused(encoding, body, words):
    with pytest.raises(WireError) as caught:
        parse(HttpRequest("POST", "/", "", [("Content-Encoding", encoding)], body), PUT_METRICS)
    assert words in caught.value.message


def test_forms_carry_lists_structures_and_every_scalar():
    form = (
        "Action=PutMetricData&Version=2010-08-01&Namespace=a%2Fb+c"
        "&MetricData.member.10.MetricName=tenth&MetricData.member.2.MetricName=second"
        "&MetricData.member.2.Timestamp=2024-01-31T10%3A20%3A30.5Z&MetricData.member.2.Value=1.5e3"
        "&MetricData.member.2.StorageResolution=60&MetricData.member.10.Timestamp=1706696430"
        "&MetricData.member.2.Dimensions.member.1.Name=Host&MetricData.member.2.Dimensions.member.1.Value="
        "&StrictEntityValidation=true&MetricData.member.10.Values="
    )
    assert parse(form_request(form), PUT_METRICS_FORM) == {
        "Namespace": "a/b c",
        "MetricData": [
            {
                "MetricName": "second",
                "Timestamp": datetime(2024, 1, 31, 10, 20, 30, 500000, tzinfo=UTC),
                "Value": 1500.0,
                "StorageResolution": 60,
                "Dimensions": [{"Name": "Host", "Value": ""}],
            },
            {"MetricName": "tenth", "Timestamp": datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC), "Values": []},
        ],
        "StrictEntityValidation": True,
    }


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("Namespace=a&Namespace=b", "duplicate parameter 'Namespace'"),
        ("Namespace.x=1", "a structure stands where a value is expected (at 'Namespace')"),
        ("MetricData=5", "a value stands where a list is expected (at 'MetricData')"),
        ("MetricData.member.x.MetricName=5", "must be numbered"),
        ("MetricData.member.99999999999999999999.MetricName=5", "must be numbered"),
        ("MetricData.item.1.MetricName=5", "must be named 'member.N'"),
        ("MetricData.member.1.Value=abc", "'abc' can not be converted to a Double (at 'MetricData.1.Value')"),
        ("MetricData.member.1.Value=1e999", "can not be converted to a Double"),
        ("MetricData.member.1.StorageResolution=1.5", "can not be converted to an Integer"),
        ("MetricData.member.1.StorageResolution=" + "9" * 5000, "can not be converted to an Integer"),
        ("MetricData.member.1.Timestamp=yesterday", "can not be converted to a timestamp"),
        ("StrictEntityValidation=yes", "can not be converted to a Boolean"),
        ("Namespace=%ff", "not UTF-8"),
        ("Namespace=%00", "U+0000"),
        ("Namespace..x=1", "empty part"),
        ("=1", "empty part"),
        ("a." * 100 + "b=1", "nested too deeply"),
        ("&".join(f"a{number}=1" for number in range(10_001)), "at most 10000"),
    ],
)
def test_bad_forms_are_refused(form, words):
    with pytest.raises(WireError) as caught:
        parse(form_request(form), PUT_METRICS_FORM)
    assert caught.value.code == "MalformedInput"
    assert words in caught.value.message


def test_rest_bodies_are_parsed_and_refused_like_others():
    operation = service("sagemaker-metrics").operation("BatchPutMetrics", Protocol.REST_JSON)
    body = b'{"TrialComponentName": "t", "MetricData": [{"MetricName": "loss", "Timestamp": 1700000000, "Value": 0.5}]}'
    request = HttpRequest("PUT", "/BatchPutMetrics", "", [("Content-Type", "application/json")], body)
    assert parse(request, operation)["MetricData"][0]["Value"] == 0.5
    with pytest.raises(WireError, match="not JSON"):
        parse(HttpRequest("PUT", "/BatchPutMetrics", "", [], b"{"), operation)


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("2024-01-31T10:20:30Z", "iso8601", datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC)),
        ("2024-01-31T10:20:30.123456Z", "iso8601", datetime(2024, 1, 31, 10, 20, 30, 123456, tzinfo=UTC)),
        ("2024-01-31T10:20:30+02:00", "iso8601", datetime(2024, 1, 31, 8, 20, 30, tzinfo=UTC)),
        ("2024-01-31T10:20:30", "iso8601", datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC)),
        ("1706696430", "iso8601", datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC)),
        ("1706696430.5", "unixtimestamp", datetime(2024, 1, 31, 10, 20, 30, 500000, tzinfo=UTC)),
        ("Wed, 31 Jan 2024 10:20:30 GMT", "rfc822", datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC)),
        ("Wed, 31 Jan 2024 10:20:30.25 GMT", "rfc822", datetime(2024, 1, 31, 10, 20, 30, 250000, tzinfo=UTC)),
    ],
)
def test_times_are_parsed_in_every_format(text, wanted, expected):
    found = parse_time(text, wanted)
    assert found == expected
    assert found.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "iso8601"),
        ("Wed, 31 Xxx 2024 10:20:30 GMT", "rfc822"),
        ("Wed, 31 Feb 2024 10:20:30 GMT", "rfc822"),
        ("2024-13-01T00:00:00Z", "iso8601"),
        ("9" * 300, "unixtimestamp"),
        ("9999-12-31T23:59:59-14:00", "iso8601"),
    ],
)
def test_times_that_do_not_exist_are_refused(text, wanted):
    with pytest.raises(MisfitError):
        parse_time(text, wanted)


def test_epoch_seconds_before_1970_are_accepted():
    assert from_epoch(-1.5) == datetime(1969, 12, 31, 23, 59, 58, 500000, tzinfo=timezone(timedelta(0)))
