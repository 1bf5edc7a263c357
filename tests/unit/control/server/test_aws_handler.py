"""One AWS request from bytes to bytes: real routing, signatures, parsing and responses, without a socket."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from clary.base.clock import SystemClock
from clary.contract.launch_plan import Credentials
from clary.contract.sigv4 import payload_hash, sign
from clary.control.permissions.grants import Grants
from clary.control.permissions.temporary_keys import TemporaryKeys
from clary.control.server import aws_handler
from clary.control.server.aws_handler import CALLS_OF_A_JOB, AwsHandler
from clary.control.server.edge.large_bodies import LARGE_BODY_BYTES
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


async def test_a_good_request_is_answered_in_the_caller_s_protocol(handler):
    body = b"Action=GetCallerIdentity&Version=2011-06-15"
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = await handler.handle(signed(body, service="sts", headers=headers))
    assert answer.status == 200
    assert b"<Account>123456789012</Account>" in answer.body


async def test_a_temporary_key_answers_with_the_role_and_the_session_of_its_token():
    clock, keys = SystemClock(), TemporaryKeys(b"master")
    made = keys.make(datetime.now(UTC) + timedelta(seconds=60), holder="Role/me")
    verifier = SignatureVerifier({"AKID": "secret"}.get, clock, skew_s=300, temporary=keys)
    services = SimpleNamespace(settings=Settings(account_id="123456789012"), hub=SimpleNamespace())
    body = b"Action=GetCallerIdentity&Version=2011-06-15"
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "x-amz-security-token": made.session_token,
    }
    credentials = Credentials(access_key_id=made.access_key_id, secret_access_key=made.secret_access_key)
    request = signed(body, service="sts", headers=headers, credentials=credentials)
    answer = await AwsHandler(services, verifier).handle(request)
    assert answer.status == 200, answer.body
    assert b"<Arn>arn:aws:sts::123456789012:assumed-role/Role/me</Arn>" in answer.body


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
    request_ = json_call(f"SageMaker.{operation}", body, credentials=keys)  # signed now, because a signature expires
    answer = await handler.handle(request_)
    assert 400 <= answer.status < 500
    assert code in json.loads(answer.body)["__type"]
    assert answer.header("x-amzn-requestid")


@pytest.mark.parametrize(
    ("operation", "body", "named"),
    [
        ("ListTrainingJobs", {"ColourEquals": "red", "StatusEquals": None}, "ColourEquals: "),
        (
            "Search",
            {"Resource": "TrainingJob", "SearchExpression": {"Filters": [{"Name": "a", "Of": 1}], "Near": "x"}},
            "SearchExpression.Filters.Of, SearchExpression.Near: ",
        ),
        ("StopTrainingJob", {"TrainingJobName": "j", "Softly": True}, "Softly: "),
        ("DeleteTrainingJob", {"TrainingJobName": "j", "Twice": True}, "Twice: "),
    ],
)
async def test_unknown_members_are_refused_where_no_warning_could_be_read(handler, operation, body, named):
    answer = await handler.handle(json_call(f"SageMaker.{operation}", json.dumps(body).encode()))
    error = json.loads(answer.body)
    assert (answer.status, error["__type"]) == (400, "ValidationException")
    assert error["message"] == f"{named}this release knows no such member of {operation}; leave it out."


TRAINING = {"AlgorithmSpecification": {"TrainingInputMode": "File"}, "RoleArn": "arn:aws:iam::123456789012:role/Role"}
TRAINING |= {"OutputDataConfig": {"S3OutputPath": "s3://b/o"}, "StoppingCondition": {}, "Cooling": "water"}
TUNING = {"Strategy": "Random", "ResourceLimits": {"MaxParallelTrainingJobs": 1, "Warmth": 1}}


@pytest.mark.parametrize(
    ("operation", "body", "unknown"),
    [
        ("CreateTrainingJob", {**TRAINING, "TrainingJobName": "j"}, ("Cooling",)),
        ("UpdateTrainingJob", {"TrainingJobName": "j", "Cooling": "water"}, ("Cooling",)),
        (
            "CreateHyperParameterTuningJob",
            {
                "HyperParameterTuningJobName": "t",
                "HyperParameterTuningJobConfig": TUNING,
                "TrainingJobDefinition": TRAINING,
            },
            ("HyperParameterTuningJobConfig.ResourceLimits.Warmth", "TrainingJobDefinition.Cooling"),
        ),
        ("DescribeTrainingJob", {"TrainingJobName": "j", "Cooling": "water"}, ()),
    ],
)
async def test_unknown_members_reach_the_handlers_that_warn_of_them(monkeypatch, operation, body, unknown):
    told = []

    async def dispatch(service, name, call):
        told.append((name, call.unknown_members))
        return {}

    monkeypatch.setattr(aws_handler, "dispatch", dispatch)
    verifier = SignatureVerifier({"AKID": "secret"}.get, SystemClock(), skew_s=300)
    handler = AwsHandler(SimpleNamespace(settings=Settings()), verifier)
    answer = await handler.handle(json_call(f"SageMaker.{operation}", json.dumps(body).encode()))
    assert told == [(operation, unknown)], answer.body


async def test_an_anonymous_request_is_refused_in_its_own_protocol(handler):
    headers = [("Content-Type", "application/x-www-form-urlencoded")]
    answer = await handler.handle(HttpRequest("POST", "/", "", headers, b"Action=GetCallerIdentity&Version=2011-06-15"))
    assert answer.status == 403
    assert b"<ErrorResponse" in answer.body


async def test_calls_with_one_job_s_key_do_not_block_other_callers(monkeypatch):
    """Each search in logs takes a thread, so calls of a job's key wait for each other."""
    goes_on, under_way = asyncio.Event(), []

    async def slow_dispatch(service, operation, call):
        under_way.append(call.access_key_id)
        await goes_on.wait()
        return {}

    monkeypatch.setattr(aws_handler, "dispatch", slow_dispatch)
    grants = {
        name: Grants(job_name=name, job_arn=f"arn:{name}", job_id=name, reads=(), writes=()) for name in ("one", "two")
    }
    verifier = SignatureVerifier(lambda key: "secret", SystemClock(), skew_s=300)
    services = SimpleNamespace(settings=Settings(), store=None)
    handler = AwsHandler(services, verifier, find_grants=grants.get)
    calls = []
    for number, key in enumerate(["one"] * 5 + ["two", "owner"]):
        # All calls differ: an equal second call would count as a repetition of the first.
        headers = {"content-type": "application/x-www-form-urlencoded", "x-number": str(number)}
        body = b"Action=GetCallerIdentity&Version=2011-06-15"
        keys = Credentials(access_key_id=key, secret_access_key="secret")
        calls.append(
            asyncio.create_task(handler.handle(signed(body, service="sts", headers=headers, credentials=keys)))
        )
    await asyncio.sleep(0.05)
    assert sorted(under_way) == ["one"] * CALLS_OF_A_JOB + ["owner", "two"]
    goes_on.set()
    assert [answer.status for answer in await asyncio.gather(*calls)] == [200] * 7


async def test_large_bodies_of_a_job_s_calls_do_not_block_other_callers(monkeypatch):
    """Large bodies are parsed one at a time; the call behind a body waits for its job's turn, nobody for the call."""
    goes_on, under_way = asyncio.Event(), []

    async def slow_dispatch(service, operation, call):
        under_way.append(call.access_key_id)
        await goes_on.wait()
        return {}

    monkeypatch.setattr(aws_handler, "dispatch", slow_dispatch)
    grants = {"one": Grants(job_name="one", job_arn="arn:one", job_id="one", reads=(), writes=())}
    verifier = SignatureVerifier(lambda key: "secret", SystemClock(), skew_s=300)
    services = SimpleNamespace(settings=Settings(), store=None)
    handler = AwsHandler(services, verifier, find_grants=grants.get)
    calls = []
    for number, key in enumerate(["one"] * 5 + ["owner"]):
        headers = {"content-type": "application/x-www-form-urlencoded", "x-number": str(number)}
        body = b"Action=GetCallerIdentity&Version=2011-06-15&Pad=" + b"x" * LARGE_BODY_BYTES
        keys = Credentials(access_key_id=key, secret_access_key="secret")
        calls.append(
            asyncio.create_task(handler.handle(signed(body, service="sts", headers=headers, credentials=keys)))
        )
    async with asyncio.timeout(20):
        while "owner" not in under_way:
            await asyncio.sleep(0.01)
    assert sorted(under_way) == ["one"] * CALLS_OF_A_JOB + ["owner"]
    goes_on.set()
    assert [answer.status for answer in await asyncio.gather(*calls)] == [200] * 6
