"""One AWS request from bytes to bytes: real routing, signatures, parsing and answers, without a socket."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from clary.contract.clock import SystemClock
from clary.contract.launch_plan import Credentials
from clary.contract.sigv4 import payload_hash, sign
from clary.control.server.aws_handler import AwsHandler
from clary.control.settings import Settings
from clary.control.wire.messages import HttpRequest
from clary.control.wire.signatures import SignatureVerifier

KEYS = Credentials(access_key_id="AKID", secret_access_key="secret")


@pytest.fixture
def handler():
    verifier = SignatureVerifier({"AKID": "secret"}.get, SystemClock(), skew_s=300)
    return AwsHandler(SimpleNamespace(settings=Settings(account_id="123456789012")), verifier)


def signed(body, *, service, headers, credentials=KEYS):
    headers = {"host": "127.0.0.1:4570", **headers}
    added = sign(
        "POST",
        "/",
        "",
        headers,
        payload_hash(body),
        credentials=credentials,
        region="eu-west-1",
        service=service,
        now=datetime.now(UTC),
    )
    return HttpRequest("POST", "/", "", list({**headers, **added}.items()), body)


def json_call(target, body, **options):
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": target}
    return signed(body, service="sagemaker", headers=headers, **options)


async def test_a_good_request_is_answered_in_the_callers_protocol(handler):
    body = b"Action=GetCallerIdentity&Version=2011-06-15"
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = await handler.handle(signed(body, service="sts", headers=headers))
    assert answer.status == 200
    assert b"<Account>123456789012</Account>" in answer.body


WRONG_KEYS = Credentials(access_key_id="AKID", secret_access_key="wrong")


@pytest.mark.parametrize(
    ("operation", "body", "keys", "code"),
    [
        ("DescribeTrainingJob", b"{}", KEYS, "ValidationException"),
        ("DescribeTrainingJob", b"{", KEYS, "SerializationException"),
        ("NoSuchThing", b"{}", KEYS, "UnknownOperationException"),
        ("CreateEndpoint", b'{"EndpointName": "e", "EndpointConfigName": "c"}', KEYS, "UnknownOperation"),
        ("ListTrainingJobs", b"{}", WRONG_KEYS, "InvalidSignatureException"),
    ],
    ids=["missing member", "no JSON", "unknown operation", "not offered", "wrong key"],
)
async def test_a_bad_request_is_an_error_in_the_form_of_aws_with_a_request_id(handler, operation, body, keys, code):
    request_ = json_call(f"SageMaker.{operation}", body, credentials=keys)  # now: a signature ages
    answer = await handler.handle(request_)
    assert 400 <= answer.status < 500
    assert code in json.loads(answer.body)["__type"]
    assert answer.header("x-amzn-requestid")


async def test_an_anonymous_request_is_refused_in_the_protocol_that_it_speaks(handler):
    headers = [("Content-Type", "application/x-www-form-urlencoded")]
    answer = await handler.handle(HttpRequest("POST", "/", "", headers, b"Action=GetCallerIdentity&Version=2011-06-15"))
    assert answer.status == 403
    assert b"<ErrorResponse" in answer.body
