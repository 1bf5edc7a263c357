"""The wire code answers all input with an error in AWS's format: it raises no exception but WireError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_builders import REQUEST_ID, form_request, json_request

from clary.base.clock import SystemClock
from clary.base.errors import WireError
from clary.control.wire.cbor_documents import dump_cbor
from clary.control.wire.messages import HttpRequest
from clary.control.wire.parsing import parse
from clary.control.wire.routing import protocol_of, route
from clary.control.wire.scalars import MisfitError
from clary.control.wire.serializing import serialize_error
from clary.control.wire.signatures import SignatureVerifier
from clary.control.wire.validation import validate

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.sampled_from(
    ["TrainingJobName", "HyperParameters", "Tags", "ResourceConfig", "InputDataConfig", "Environment", "VpcConfig"]
)
FORM_NAMES = st.sampled_from(
    ["MetricData", "member", "1", "2", "Dimensions", "Name", "Value", "Timestamp", "Namespace", "entry", "", "x"]
)


def answer(request: HttpRequest) -> None:
    """Process a request as far as possible; any exception but WireError fails the test."""
    try:
        operation = route(request)
        validate(operation, parse(request, operation))
    except WireError as error:
        response = serialize_error(error, protocol=protocol_of(request), request_id=REQUEST_ID)
        assert response.status == 400
        assert len(response.body) < 100_000


@given(st.binary(max_size=300))
def test_arbitrary_bytes_as_json(body):
    answer(json_request("CreateTrainingJob", body))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_as_a_form(body):
    answer(form_request(b"Action=PutMetricData&Version=2010-08-01&" + body))


def cbor_request(body: bytes) -> HttpRequest:
    headers = [("smithy-protocol", "rpc-v2-cbor"), ("Content-Type", "application/cbor")]
    return HttpRequest(
        "POST", "/service/GraniteServiceVersion20100801/operation/PutMetricData", "", headers, body, "127.0.0.1"
    )


@given(st.binary(max_size=300))
def test_arbitrary_bytes_as_cbor(body):
    answer(cbor_request(body))
    answer(cbor_request(b"\xa2\x69Namespace\x61a\x6aMetricData" + body))


@given(st.dictionaries(st.sampled_from(["Namespace", "MetricData", "StrictEntityValidation"]), JSON_VALUES, max_size=3))
def test_arbitrary_values_in_known_members_of_cbor(document):
    try:
        body = dump_cbor(document)
    except MisfitError:  # an integer of more than 64 bits
        return
    answer(cbor_request(body))


@given(st.dictionaries(MEMBERS, JSON_VALUES, max_size=5))
def test_arbitrary_values_in_known_members(body):
    answer(json_request("CreateTrainingJob", json.dumps(body).encode()))


@given(st.lists(st.tuples(st.lists(FORM_NAMES, min_size=1, max_size=6), st.text(max_size=8)), max_size=8))
def test_arbitrary_names_in_a_form(fields):
    form = "&".join(f"{'.'.join(name)}={value}" for name, value in fields)
    answer(form_request(b"Action=PutMetricData&Version=2010-08-01&" + form.encode("utf-8", "replace")))


@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", ""]),
    st.text(max_size=30),
    st.text(max_size=60),
    st.lists(
        st.tuples(
            st.sampled_from(["Content-Type", "X-Amz-Target", "Authorization", "Content-Encoding", "smithy-protocol"]),
            st.sampled_from(["application/x-amz-json-1.1", "SageMaker.Search", "gzip", "SageMaker.", "."]) | st.text(),
        )
    ),
    st.binary(max_size=60),
)
def test_arbitrary_requests(method, path, query, headers, body):
    answer(HttpRequest(method, path, query, headers, body))


AUTHORIZATIONS = st.builds(
    "AWS4-HMAC-SHA256 Credential={}, SignedHeaders={}, Signature={}".format,
    st.sampled_from(["AKID/20260131/r/sagemaker/aws4_request", "AKID/2026/r/s/aws4_request", "/////"]) | st.text(),
    st.sampled_from(["host;x-amz-date", "host", ";", "HOST"]) | st.text(),
    st.sampled_from(["00" * 32, "zz" * 32, ""]) | st.text(),
)


@given(
    AUTHORIZATIONS | st.text(),
    st.sampled_from(["20260131T000000Z", "99999999T999999Z", ""]) | st.text(max_size=20) | st.none(),
    st.text(max_size=40),
    st.sampled_from(["X-Amz-Signature=00&X-Amz-Expires=5", "X-Amz-Signature="]) | st.text(max_size=60),
)
def test_arbitrary_signatures_are_refused_without_another_exception(authorization, amz_date, date, query):
    headers = [("Host", "h"), ("Authorization", authorization), ("Date", date)]
    if amz_date is not None:
        headers.append(("X-Amz-Date", amz_date))
    if authorization == "":
        del headers[1]
    verifier = SignatureVerifier({"AKID": "secret"}.get, SystemClock(), skew_s=300.0)
    with pytest.raises(WireError) as caught:
        verifier.verify(HttpRequest("POST", "/%zz/..", query, headers, b"{}"))
    assert caught.value.http_status in (400, 403)
