from __future__ import annotations

import gzip
import re
from pathlib import Path

import botocore
import pytest
from botocore.parsers import create_parser
from wire_builders import form_request, json_request

from clary.base.errors import WireError
from clary.control.wire.messages import HttpRequest
from clary.control.wire.models import Protocol
from clary.control.wire.routing import MAX_SEARCHED_BYTES, REST_XML_SCOPES, credential_service, protocol_of, route
from clary.control.wire.serializing import serialize_error


def signed_for(scope: str, request: HttpRequest) -> HttpRequest:
    value = (
        f"AWS4-HMAC-SHA256 Credential=AKID/20260101/us-west-2/{scope}/aws4_request, SignedHeaders=host, Signature=00"
    )
    return HttpRequest(
        request.method, request.raw_path, request.query, [*request.headers, ("Authorization", value)], request.body
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (json_request("CreateTrainingJob", {}), ("sagemaker", "CreateTrainingJob", Protocol.JSON_1_1)),
        (json_request("GetLogEvents", {}, prefix="Logs_20140328"), ("logs", "GetLogEvents", Protocol.JSON_1_1)),
        (
            json_request("GetMetricStatistics", {}, prefix="GraniteServiceVersion20100801", version="1.0"),
            ("cloudwatch", "GetMetricStatistics", Protocol.JSON_1_0),
        ),
        (
            form_request("Action=GetCallerIdentity&Version=2011-06-15"),
            ("sts", "GetCallerIdentity", Protocol.QUERY),
        ),
        (form_request("RoleName=x&Action=GetRole&Version=2010-05-08"), ("iam", "GetRole", Protocol.QUERY)),
        (
            form_request("Action=GetMetricStatistics&Version=2010-08-01"),
            ("cloudwatch", "GetMetricStatistics", Protocol.QUERY),
        ),
        (
            HttpRequest("PUT", "/BatchPutMetrics", "", [("Content-Type", "application/json")], b"{}"),
            ("sagemaker-metrics", "BatchPutMetrics", Protocol.REST_JSON),
        ),
        (
            HttpRequest("GET", "/", "Action=GetCallerIdentity&Version=2011-06-15", []),
            ("sts", "GetCallerIdentity", Protocol.QUERY),
        ),
    ],
)
def test_every_form_of_an_operation_name_is_routed(request_, expected):
    operation = route(request_)
    assert (operation.service.name, operation.name, operation.protocol) == expected


def cbor_request(path="/service/GraniteServiceVersion20100801/operation/PutMetricData", body=b"\xa0", **changed):
    headers = {"Content-Type": "application/cbor", "smithy-protocol": "rpc-v2-cbor", **changed}
    kept = [(name.replace("_", "-"), value) for name, value in headers.items() if value is not None]
    return HttpRequest("POST", path, "", kept, body)


def test_the_path_of_a_cbor_request_names_its_operation():
    operation = route(signed_for("monitoring", cbor_request()))
    assert (operation.service.name, operation.name, operation.protocol) == (
        "cloudwatch",
        "PutMetricData",
        Protocol.RPC_V2_CBOR,
    )
    without_body = HttpRequest("POST", cbor_request().raw_path, "", [("Smithy-Protocol", "rpc-v2-cbor")])
    assert route(without_body) is operation


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (cbor_request("/service/SageMaker/operation/ListTrainingJobs"), "SageMaker"),
        (cbor_request("/service/GraniteServiceVersion20100801/operation/Nope"), "Nope"),
        (cbor_request("/service/GraniteServiceVersion20100801/operation/PutMetricData/"), "POST"),
        (cbor_request("/x/service/GraniteServiceVersion20100801/operation/PutMetricData"), "POST"),
        (cbor_request("/"), "POST"),
        (cbor_request(**{"Content-Type": "application/json"}), "'application/json'"),
        (cbor_request(**{"Content-Type": None}), "'none'"),
        (cbor_request(**{"smithy-protocol": "rpc-v2-json"}), "'rpc-v2-json'"),
        (HttpRequest("PUT", cbor_request().raw_path, "", cbor_request().headers, b"\xa0"), "PUT"),
    ],
)
def test_a_smithy_request_without_an_operation_is_refused(request_, words):
    with pytest.raises(WireError) as caught:
        route(request_)
    assert (caught.value.code, words in caught.value.message) == ("UnknownOperationException", True)


OTHER_ACTION = b"&Action=DeleteAlarms&Version=2010-08-01&AlarmNames.member.1=a&"
CONTENT_TYPES = (
    "application/x-amz-json-1.0",
    "application/x-amz-json-1.1",
    "application/x-www-form-urlencoded",
    "application/json",
    "application/cbor",
    "text/plain",
    None,
)


@pytest.mark.parametrize(
    "request_",
    [
        json_request("PutMetricData", {"Namespace": OTHER_ACTION.decode()}, prefix="GraniteServiceVersion20100801"),
        json_request("CreateTrainingJob", {"TrainingJobName": OTHER_ACTION.decode()}),
        form_request(b"Action=PutMetricData&Version=2010-08-01&Namespace=%7B%7D"),
        form_request(b"Action=GetRole&Version=2010-05-08&RoleName=r"),
        HttpRequest("POST", "/BatchGetMetrics", "", [("Content-Type", "application/json")], OTHER_ACTION),
        cbor_request(body=b"\xa1\x69Namespace\x78\x40" + OTHER_ACTION),
    ],
    ids=lambda request: f"{request.raw_path}-{request.header('content-type')}",
)
@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_another_content_type_never_names_another_operation(request_, content_type):
    """Clients need not sign the content type: a change of it on the way can only make the request fail."""
    sent = route(request_)
    headers = [pair for pair in request_.headers if pair[0] != "Content-Type"]
    headers += [("Content-Type", content_type)] if content_type is not None else []
    changed = HttpRequest(request_.method, request_.raw_path, "", headers, request_.body)
    # The header smithy-protocol is nothing that must be signed either.
    stripped = [pair for pair in headers if pair[0] != "smithy-protocol"]
    for one in (changed, HttpRequest(request_.method, request_.raw_path, "", stripped, request_.body)):
        try:
            found = route(one)
        except WireError:
            continue
        assert (found.service, found.name) == (sent.service, sent.name)
        assert _bodies_of(found.protocol) == _bodies_of(sent.protocol)


def _bodies_of(protocol):
    """Return how a protocol's bodies are read: JSON 1.0 and 1.1 are the same to a server."""
    return "json" if protocol in (Protocol.JSON_1_0, Protocol.JSON_1_1) else protocol


def compressed(form, *, encoding="gzip"):
    plain = form_request(form)
    body = gzip.compress(plain.body) if encoding == "gzip" else plain.body
    return HttpRequest("POST", "/", "", [*plain.headers, ("Content-Encoding", encoding)], body)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP ", "identity", ""])
def test_the_action_of_a_compressed_form_is_found(encoding):
    form = "Action=PutMetricData&Version=2010-08-01&Namespace=" + "n" * 3_000_000
    assert route(compressed(form, encoding="gzip" if encoding == "GZIP " else encoding)).name == "PutMetricData"


@pytest.mark.parametrize(
    ("encoding", "body", "words"), [("br", b"Action=GetRole", "'br' is not understood"), ("gzip", b"Act", "not gzip")]
)
def test_a_form_that_can_not_be_decompressed_is_refused(encoding, body, words):
    plain = form_request(body)
    request = HttpRequest("POST", "/", "", [*plain.headers, ("Content-Encoding", encoding)], body)
    with pytest.raises(WireError) as caught:
        route(request)
    assert (caught.value.code, words in caught.value.message) == ("MalformedInput", True)


def test_only_the_beginning_of_a_compressed_form_is_searched_for_its_action():
    with pytest.raises(WireError) as caught:
        route(compressed("a=" + "b" * (2 * MAX_SEARCHED_BYTES) + "&Action=PutMetricData&Version=2010-08-01"))
    assert caught.value.code == "MissingAction"


def test_the_same_operation_is_the_same_object():
    assert route(json_request("CreateTrainingJob", {})) is route(json_request("CreateTrainingJob", {}))


def test_sagemaker_scope_reaches_both_sagemaker_and_its_metrics():
    training = route(signed_for("sagemaker", json_request("StopTrainingJob", {})))
    metrics = route(signed_for("sagemaker", HttpRequest("POST", "/BatchGetMetrics", "", [], b"{}")))
    assert (training.service.name, metrics.service.name) == ("sagemaker", "sagemaker-metrics")


def test_scope_wins_over_a_target_of_another_service():
    with pytest.raises(WireError) as caught:
        route(signed_for("logs", json_request("CreateTrainingJob", {})))
    assert caught.value.code == "UnknownOperationException"


def test_unknown_scope_is_refused_with_the_supported_services():
    with pytest.raises(WireError) as caught:
        route(signed_for("ec2", form_request("Action=RunInstances&Version=2016-11-15")))
    assert "'ec2'" in caught.value.message
    assert "(ecr, iam, logs, monitoring, s3, sagemaker, sts)" in caught.value.message


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (json_request("NoSuchOperation", {}), "UnknownOperationException", "SageMaker.NoSuchOperation"),
        (json_request("CreateTrainingJob", {}, prefix="Nope"), "UnknownOperationException", "Nope"),
        (json_request("CreateTrainingJob", {}, version="9.9"), "UnknownOperationException", "content type"),
        (form_request("Action=Nope&Version=2011-06-15"), "InvalidAction", "Nope"),
        (form_request("Action=GetRole&Version=1999-01-01"), "InvalidAction", "1999-01-01"),
        (form_request("Version=2011-06-15"), "MissingAction", "Action"),
        (form_request(b"Action=%ff%fe"), "InvalidAction", "version"),
        (
            HttpRequest("POST", "/x", "", form_request("").headers, b"Action=GetRole&Version=2010-05-08"),
            "InvalidAction",
            "'/x'",
        ),
        (HttpRequest("GET", "/", "", []), "UnknownOperationException", "GET"),
        (HttpRequest("DELETE", "/BatchPutMetrics", "", []), "UnknownOperationException", "DELETE"),
        (
            HttpRequest("GET", "/", "", [("X-Amz-Target", "SageMaker.ListTrainingJobs")]),
            "UnknownOperationException",
            "content type",
        ),
        (
            HttpRequest("POST", "/service/X/operation/Y", "", [("smithy-protocol", "rpc-v2-cbor")]),
            "UnknownOperationException",
            "'/service/X/operation/Y'",
        ),
    ],
)
def test_a_request_without_an_operation_is_refused_with_a_message(request_, code, words):
    with pytest.raises(WireError) as caught:
        route(request_)
    assert caught.value.code == code
    assert words in caught.value.message
    assert caught.value.http_status == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/endpoints/mine/invocations"), ("PUT", "/FeatureGroup/mine"), ("GET", "/FeatureGroup/mine")],
)
def test_a_call_of_an_endpoint_or_feature_group_is_refused_with_what_is_offered(method, path):
    with pytest.raises(WireError) as caught:
        route(signed_for("sagemaker", HttpRequest(method, path, "", [], b"")))
    assert caught.value.code == "UnknownOperationException"
    assert f"{method} {path!r}" in caught.value.message
    assert "this service offers training jobs, tuning jobs and experiments" in caught.value.message


def test_refusals_do_not_repeat_long_input():
    with pytest.raises(WireError) as caught:
        route(json_request("A" * 100_000, {}))
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("request_", "protocol"),
    [
        (json_request("Nope", {}), Protocol.JSON_1_1),
        (json_request("Nope", {}, version="1.0"), Protocol.JSON_1_0),
        (HttpRequest("POST", "/", "", [("X-Amz-Target", "a.b"), ("Content-Type", "text/html")]), Protocol.JSON_1_1),
        (form_request("x=y"), Protocol.QUERY),
        (cbor_request("/nowhere"), Protocol.RPC_V2_CBOR),
        (HttpRequest("GET", "/nowhere", "", []), Protocol.REST_JSON),
    ],
)
def test_errors_have_a_protocol_even_if_routing_failed(request_, protocol):
    assert protocol_of(request_) is protocol


def test_scope_is_read_from_presigned_urls():
    query = "X-Amz-Credential=AKID%2F20260101%2Fus-west-2%2Fsts%2Faws4_request&X-Amz-Signature=00"
    assert credential_service(HttpRequest("GET", "/", query, [])) == "sts"


def models_of_botocore():
    """Yield the protocol and the signing name of every service of botocore; both are near the start of a model."""
    for path in Path(botocore.__file__).parent.glob("data/*/*/service-2.json*"):
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as model:
            head = model.read(3000)
        name = re.search(rb'"signingName":\s*"([^"]+)"', head) or re.search(rb'"endpointPrefix":\s*"([^"]+)"', head)
        yield re.search(rb'"protocol":\s*"([^"]+)"', head)[1].decode(), name[1].decode()


def test_services_with_protocol_rest_xml_are_listed_by_name():
    spoken = {name for protocol, name in models_of_botocore() if protocol == "rest-xml"}
    assert spoken | {"s3express"} == set(REST_XML_SCOPES), "clients of these read no JSON error"


@pytest.mark.parametrize("service", ["route53", "cloudfront", "s3express"])
def test_a_rest_xml_client_can_parse_the_refusal_of_its_service(service):
    request = signed_for(service, HttpRequest("GET", "/2013-04-01/hostedzone", "", []))
    with pytest.raises(WireError) as error:
        route(request)
    answer = serialize_error(error.value, protocol=protocol_of(request), request_id="R")
    raw = {"status_code": answer.status, "headers": dict(answer.headers), "body": answer.body}
    told = create_parser("rest-xml").parse(raw, None)["Error"]
    assert told["Code"] == "UnknownOperationException"
    assert told["Message"].endswith(f"got {service!r}.")
