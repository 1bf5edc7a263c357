"""botocore's protocol test vectors, seen from the server's side.

Input vectors: the request that a client must send is parsed, and must give the vector's parameters. Output vectors:
the vector's result is serialised, and botocore must read the same from it. Vectors come from botocore's source
archive: `tools/fetch_protocol_vectors.py` puts them into `.cache/botocore-protocols/`.
"""

from __future__ import annotations

import base64
import copy
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import HeadersDict
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.utils import parse_timestamp
from wire_builders import BOTOCORE_PROTOCOLS, REQUEST_ID

from clary.base.errors import WireError
from clary.control.wire.messages import HttpRequest, HttpResponse
from clary.control.wire.models import Operation, Protocol, Service
from clary.control.wire.parsing import parse
from clary.control.wire.routing import Router
from clary.control.wire.serializing import serialize, serialize_error

ROOT = next(parent for parent in Path(__file__).resolve().parents if parent.name == "tests").parent
VECTORS = ROOT / ".cache" / "botocore-protocols"
FILES = {
    "json": Protocol.JSON_1_1,
    "json_1_0": Protocol.JSON_1_0,
    "json_1_0-query-compatible": Protocol.JSON_1_0,
    "query": Protocol.QUERY,
    "rest-json": Protocol.REST_JSON,
    "smithy-rpc-v2-cbor": Protocol.RPC_V2_CBOR,
    "smithy-rpc-v2-cbor-query-compatible": Protocol.RPC_V2_CBOR,
    "smithy-rpc-v2-cbor-non-query-compatible": Protocol.RPC_V2_CBOR,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Vectors that do not apply to a server, by name and with the reason.
NO_BODY = "the vector says that the client compresses, and holds no body to decompress"
NOT_IN_REQUEST = "an empty list or map leaves no trace in the request, so that nobody can read it back"
FILLS_TOKEN = "the client makes up an idempotency token; the server sees a parameter like any other"
ALL_PARAMETERS = "servers put all query parameters into the map (Smithy: RestJsonServersPutAllQueryParamsInMap)"
EMPTY_PAYLOAD = "the client writes {} for an absent payload structure, which reads as an empty one"
INPUTS_LEFT_OUT = {
    "SDKAppliedContentEncoding_awsJson1_1": NO_BODY,
    "SDKAppendsGzipAndIgnoresHttpProvidedEncoding_awsJson1_1": NO_BODY,
    "SDKAppliedContentEncoding_awsJson1_0": NO_BODY,
    "SDKAppendsGzipAndIgnoresHttpProvidedEncoding_awsJson1_0": NO_BODY,
    "SDKAppliedContentEncoding_awsQuery": NO_BODY,
    "SDKAppendsGzipAndIgnoresHttpProvidedEncoding_awsQuery": NO_BODY,
    "SDKAppliedContentEncoding_restJson1": NO_BODY,
    "SDKAppendedGzipAfterProvidedEncoding_restJson1": NO_BODY,
    "QueryProtocolIdempotencyTokenAutoFill": FILLS_TOKEN,
    "RestJsonQueryIdempotencyTokenAutoFill": FILLS_TOKEN,
    "QueryEmptyQueryMaps": NOT_IN_REQUEST,
    "RestJsonHttpPrefixHeadersAreNotPresent": NOT_IN_REQUEST,
    "RestJsonOmitsEmptyListQueryValues": NOT_IN_REQUEST,
    "RestJsonQueryParamsStringListMap": ALL_PARAMETERS,
    "RestJsonQueryPrecedence": ALL_PARAMETERS,
    "RestJsonHostWithPath": "the path before the operation's own belongs to an endpoint that only the client knows",
    "RestJsonHttpWithEmptyStructurePayload": EMPTY_PAYLOAD,
    "RestJsonHttpWithHeadersButNoPayload": EMPTY_PAYLOAD,
}
BOTOCORE_CAN_NOT = "botocore cannot read this answer (its own tests leave it out); only the headers are compared"
OUTPUTS_LEFT_OUT = {
    "RestJsonHttpPayloadTraitsWithNoBlobBody": BOTOCORE_CAN_NOT,
    "RestJsonHttpPayloadWithUnsetUnion": BOTOCORE_CAN_NOT,
    "RestJsonInputAndOutputWithQuotedStringHeaders": BOTOCORE_CAN_NOT,
    "RestJsonInputAndOutputWithTimestampHeaders": BOTOCORE_CAN_NOT,
    "QueryXmlLists": "botocore names flattened lists by their elements and takes two of them for one",
    "HttpPrefixHeadersResponse": "an empty header prefix collects our own headers too; only the vector's are compared",
}


def cases(direction: str) -> list[Any]:
    return list(_each_case(direction))


def _each_case(direction: str) -> Iterator[Any]:
    for name in FILES:
        path = VECTORS / direction / f"{name}.json"
        if not path.is_file():
            yield pytest.param(name, None, None, id=f"{name}-missing")
            continue
        for suite in json.loads(path.read_text()):
            description = {key: value for key, value in suite.items() if key != "cases"}
            for case in suite["cases"]:
                yield pytest.param(name, description, case, id=f"{name}-{case['id']}")


def require(case: Any) -> None:
    if case is None:
        pytest.fail(f"{VECTORS} is missing: run .venv/bin/python tools/fetch_protocol_vectors.py")


def operation_of(name: str, description: Any, case: Any) -> Operation:
    model = copy.deepcopy(description)
    model["operations"] = {case["given"]["name"]: copy.deepcopy(case["given"])}
    return Service(name, ServiceModel(model)).operation(case["given"]["name"], FILES[name])


def test_the_vectors_are_present():
    assert (VECTORS / "VERSION").is_file(), "run .venv/bin/python tools/fetch_protocol_vectors.py"
    inputs = [case.values[2]["id"] for case in cases("input")]
    outputs = [case.values[2]["id"] for case in cases("output")]
    print(f"inputs: {len(inputs)}, of these left out: {len(INPUTS_LEFT_OUT)}")
    print(f"outputs: {len(outputs)}, of these left out: {len(OUTPUTS_LEFT_OUT)}")
    assert len(inputs) >= 200
    assert len(outputs) >= 200
    assert set(inputs) >= INPUTS_LEFT_OUT.keys()
    assert set(outputs) >= OUTPUTS_LEFT_OUT.keys()


@pytest.mark.parametrize(("name", "description", "case"), cases("input"))
def test_request_of_vector_parses_to_its_parameters(name, description, case):
    require(case)
    if case["id"] in INPUTS_LEFT_OUT:
        pytest.skip(INPUTS_LEFT_OUT[case["id"]])
    operation = operation_of(name, description, case)
    wanted = case["serialized"]
    path, _, query = wanted["uri"].partition("?")
    headers = list(wanted.get("headers", {}).items())
    body = wanted.get("body", "").encode()
    if operation.protocol is Protocol.RPC_V2_CBOR:
        body = base64.b64decode(body)
    request = HttpRequest(wanted["method"], path, query, headers, body)
    if operation.protocol in (Protocol.REST_JSON, Protocol.RPC_V2_CBOR):
        assert Router([operation.service]).route(request).name == operation.name
    found = parse(request, operation)
    assert comparable(found) == comparable(wanted_values(case["params"], operation.model.input_shape))


@pytest.mark.parametrize(("name", "description", "case"), cases("output"))
def test_result_of_vector_is_parsed_back_by_botocore(name, description, case):
    require(case)
    operation = operation_of(name, description, case)
    if "error" in case:
        check_error(operation, case)
        return
    result = wanted_values(case["result"], operation.model.output_shape)
    response = serialize(operation, result, request_id=REQUEST_ID)
    assert response.status == case["response"]["status_code"]
    for header, value in case["response"].get("headers", {}).items():
        compared = operation.protocol in (Protocol.REST_JSON, Protocol.RPC_V2_CBOR)
        if compared and header.lower() not in ("content-type", "content-length"):
            assert response.header(header) == value
    if case["id"] in OUTPUTS_LEFT_OUT:
        return
    shape = operation.model.output_shape
    if shape is not None and operation.protocol is Protocol.QUERY:
        shape.serialization.setdefault("resultWrapper", f"{operation.name}Result")
    found = read(operation, response, shape)
    metadata = found.pop("ResponseMetadata", {})
    if shape is None and operation.protocol is Protocol.RPC_V2_CBOR:
        assert (response.header("Content-Type"), response.body) == (None, b"")
        assert response.header("x-amzn-RequestId") == REQUEST_ID  # botocore reads no metadata here
    else:
        assert metadata.get("RequestId") == REQUEST_ID
    assert comparable(found) == comparable(result)


def check_error(operation: Operation, case: Any) -> None:
    code, message = case["errorCode"], case.get("errorMessage", case["error"].get("Message", ""))
    status = case["response"]["status_code"]
    error = WireError(code, message, http_status=status)
    response = serialize_error(error, protocol=operation.protocol, request_id=REQUEST_ID, service=operation.service)
    modelled = operation.service.exceptions.get(code)
    assert response.status == (modelled.http_status if modelled and modelled.http_status else status)
    found = read(operation, response, operation.model.output_shape)
    assert found["Error"]["Code"] == code
    assert (found["Error"].get("Message") or "") == message
    assert found["ResponseMetadata"]["RequestId"] == REQUEST_ID


def read(operation: Operation, response: HttpResponse, shape: Any) -> dict[str, Any]:
    raw = {"status_code": response.status, "headers": HeadersDict(dict(response.headers)), "body": response.body}
    raw["context"] = {"operation_name": operation.name}
    parser = create_parser(BOTOCORE_PROTOCOLS[operation.protocol])
    found: dict[str, Any] = parser.parse(raw, shape)
    return found


def wanted_values(value: Any, shape: Any) -> Any:
    """Convert the vectors' plain JSON into values with the model's types."""
    if value is None or shape is None:
        return value
    if shape.type_name == "structure":
        if shape.is_document_type:
            return value
        return {name: wanted_values(item, shape.members[name]) for name, item in value.items()}
    if shape.type_name == "list":
        return [wanted_values(item, shape.member) for item in value]
    if shape.type_name == "map":
        return {key: wanted_values(item, shape.value) for key, item in value.items()}
    if shape.type_name == "timestamp":
        return EPOCH + timedelta(seconds=value) if isinstance(value, int | float) else parse_timestamp(value)
    if shape.serialization.get("jsonvalue") and shape.serialization.get("location") == "header":
        return json.loads(value) if isinstance(value, str) else value
    if shape.type_name == "blob" and isinstance(value, str):
        return value.encode()
    if shape.type_name in ("float", "double") and isinstance(value, str):
        return float(value)
    return value


def comparable(value: Any) -> Any:
    """Drop members that are None, turn special floats into text as in JSON, and decode bytes."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [comparable(item) for item in value if item is not None]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value.decode("utf-8") if isinstance(value, bytes) else value
