from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from unittest import mock

import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import Session
from wire_builders import REQUEST_ID, sagemaker

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.contract.launch_plan import Credentials
from clary.control.permissions.temporary_keys import TemporaryKeys
from clary.control.wire.messages import HttpRequest
from clary.control.wire.models import Operation, Protocol, service
from clary.control.wire.replays import BUCKET_S, ReplayGuard
from clary.control.wire.routing import route
from clary.control.wire.serializing import serialize, serialize_error
from clary.control.wire.signatures import SignatureVerifier, is_changing
from clary.testing.fake_clock import FakeClock

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
SKEW_S = 300.0
KEY = Credentials(access_key_id="AKIDEXAMPLE", secret_access_key="secret")
BODY = json.dumps({"TrainingJobName": "job-1"}).encode()
CREATE = sagemaker("CreateTrainingJob")
DESCRIBE = sagemaker("DescribeTrainingJob")
GET_ROLE = service("iam").operation("GetRole", Protocol.QUERY)


def verifier(clock: FakeClock | None = None) -> SignatureVerifier:
    return SignatureVerifier({KEY.access_key_id: KEY.secret_access_key}.get, clock or FakeClock(NOW), skew_s=SKEW_S)


def signed(
    operation: Operation = CREATE,
    body: bytes = BODY,
    *,
    at: datetime = NOW,
    key: Credentials = KEY,
    region: str = "us-west-2",
    scope: str | None = None,
    headers: dict[str, str] | None = None,
    only: list[str] | None = None,
) -> HttpRequest:
    base = {
        "host": "127.0.0.1:4570",
        "content-type": "application/x-amz-json-1.1",
        "x-amz-target": f"SageMaker.{operation.name}",
        **(headers or {}),
    }
    added = sigv4.sign(
        "POST",
        "/",
        "",
        base,
        sigv4.payload_hash(body),
        credentials=key,
        region=region,
        service=scope or operation.service.signing_name,
        now=at,
        signed_header_names=only,
    )
    return HttpRequest("POST", "/", "", list((base | added).items()), body, "127.0.0.1")


def changed(request: HttpRequest, *, body: bytes | None = None, query: str = "", **headers: str | None) -> HttpRequest:
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    kept = [(name, renamed.pop(name, value)) for name, value in request.headers]
    pairs = [(name, value) for name, value in [*kept, *renamed.items()] if value is not None]
    return HttpRequest(request.method, request.raw_path, query, pairs, request.body if body is None else body)


def refused(request: HttpRequest, operation: Operation | None = CREATE, *, clock: FakeClock | None = None) -> WireError:
    with pytest.raises(WireError) as caught:
        verifier(clock).verify(request, operation=operation)
    return caught.value


def test_a_signed_request_passes_in_any_region():
    found = verifier().verify(signed(region="onprem-1"), operation=CREATE)
    assert (found.access_key_id, found.region, found.service) == ("AKIDEXAMPLE", "onprem-1", "sagemaker")


def test_a_body_hash_is_accepted_in_place_of_the_body():
    verifier().verify(signed(), hashlib.sha256(BODY).hexdigest(), operation=CREATE)
    with pytest.raises(WireError, match="x-amz-content-sha256"):
        verifier().verify(signed(), hashlib.sha256(b"other").hexdigest(), operation=CREATE)


@pytest.mark.parametrize(
    ("operation", "code"),
    [(CREATE, "MissingAuthenticationTokenException"), (GET_ROLE, "MissingAuthenticationToken")],
)
def test_anonymous_requests_are_refused(operation, code):
    error = refused(changed(signed(), authorization=None), operation)
    assert (error.code, error.http_status) == (code, 403)


@pytest.mark.parametrize(
    ("operation", "code"), [(CREATE, "IncompleteSignatureException"), (GET_ROLE, "IncompleteSignature")]
)
def test_malformed_signatures_are_refused(operation, code):
    error = refused(changed(signed(), authorization="AWS4-HMAC-SHA256 Credential=x"), operation)
    assert (error.code, error.http_status) == (code, 400)
    assert "SignedHeaders" in error.message


@pytest.mark.parametrize(
    ("operation", "code"), [(CREATE, "UnrecognizedClientException"), (GET_ROLE, "InvalidClientTokenId")]
)
def test_unknown_session_tokens_are_refused(operation, code):
    error = refused(signed(operation, headers={"x-amz-security-token": "garbage"}), operation)
    assert (error.code, error.http_status) == (code, 403)
    assert "unset AWS_SESSION_TOKEN" in error.message


@pytest.mark.parametrize(("operation", "code"), [(CREATE, "ExpiredTokenException"), (GET_ROLE, "ExpiredToken")])
def test_a_temporary_key_is_valid_until_it_expires(operation, code):
    clock, keys = FakeClock(), TemporaryKeys(b"master")
    made = keys.make(clock.now() + timedelta(seconds=60), holder="Role/session")
    key = Credentials(access_key_id=made.access_key_id, secret_access_key=made.secret_access_key)
    request = signed(operation, key=key, headers={"x-amz-security-token": made.session_token}, at=clock.now())
    checking = SignatureVerifier(lambda _: None, clock, skew_s=SKEW_S, temporary=keys)
    assert checking.verify(request, operation=operation).access_key_id == made.access_key_id
    assert checking.holder_of(request) == "Role/session"
    clock.advance(60)
    with pytest.raises(WireError) as error:
        checking.verify(request, operation=operation)
    assert (error.value.code, error.value.http_status) == (code, 403)


@pytest.mark.parametrize(
    ("operation", "code"), [(CREATE, "UnrecognizedClientException"), (GET_ROLE, "InvalidClientTokenId")]
)
def test_unknown_keys_are_refused(operation, code):
    request = signed(operation, key=Credentials(access_key_id="AKIDOTHER", secret_access_key="secret"))
    error = refused(request, operation)
    assert (error.code, error.http_status) == (code, 403)
    assert error.message == "The security token included in the request is invalid."


@pytest.mark.parametrize(
    ("operation", "code"), [(CREATE, "InvalidSignatureException"), (GET_ROLE, "SignatureDoesNotMatch")]
)
def test_wrong_secrets_are_refused_with_the_message_of_aws(operation, code):
    request = signed(operation, key=Credentials(access_key_id="AKIDEXAMPLE", secret_access_key="guess"))
    error = refused(request, operation)
    assert (error.code, error.http_status) == (code, 403)
    assert error.message.startswith("The request signature we calculated does not match the signature you provided.")


@pytest.mark.parametrize(
    "tampered",
    [
        changed(signed(), query="x=1"),
        changed(signed(), host="127.0.0.1:80"),
        changed(signed(), x_amz_target="SageMaker.DeleteTrainingJob"),
        changed(signed(), content_type="application/x-amz-json-1.0"),
        changed(signed(), x_amz_date="20260131T120001Z"),
        HttpRequest("PUT", "/", "", signed().headers, BODY),
        HttpRequest("POST", "/x", "", signed().headers, BODY),
    ],
)
def test_every_part_of_a_request_is_covered_by_the_signature(tampered):
    error = refused(tampered)
    assert error.code == "InvalidSignatureException"
    assert "does not match" in error.message


def test_a_tampered_body_is_refused():
    error = refused(changed(signed(), body=BODY.replace(b"job-1", b"job-2")))
    assert error.code == "InvalidSignatureException"
    assert "x-amz-content-sha256" in error.message


def test_a_tampered_body_is_refused_if_no_hash_was_sent():
    request = signed(only=["host", "content-type", "x-amz-target"])
    without_hash = [pair for pair in request.headers if pair[0] != "x-amz-content-sha256"]
    tampered = HttpRequest("POST", "/", "", without_hash, b"{}")
    assert refused(tampered).code == "InvalidSignatureException"


def test_unsigned_payloads_are_refused():
    base = {"host": "h", "content-type": "application/x-amz-json-1.1", "x-amz-target": "SageMaker.CreateTrainingJob"}
    added = sigv4.sign(
        "POST",
        "/",
        "",
        base,
        sigv4.UNSIGNED_PAYLOAD,
        credentials=KEY,
        region="us-west-2",
        service="sagemaker",
        now=NOW,
    )
    error = refused(HttpRequest("POST", "/", "", list((base | added).items()), BODY))
    assert "x-amz-content-sha256" in error.message


@pytest.mark.parametrize(
    ("left_out", "added"),
    [("x-amz-target", {}), ("content-encoding", {"content-encoding": "gzip"})],
)
def test_relevant_headers_must_be_signed(left_out, added):
    names = [name for name in ("host", "content-type", "x-amz-target", *added) if name != left_out]
    request = signed(only=names, headers=added)
    error = refused(request)
    assert error.message.startswith(f"'{left_out}' must be a 'SignedHeader'")
    assert error.http_status == 403
    with pytest.raises(WireError, match=f"'{left_out}' must be a 'SignedHeader'"):
        verifier().judge_head(request)


def test_the_content_type_need_not_be_signed():
    """The AWS SDKs for JavaScript (v2) and PHP sign all headers but this one."""
    request = signed(only=["host", "x-amz-target"])
    assert "content-type" in request.lowered_headers
    assert "content-type" not in request.header("authorization")
    assert verifier().judge_head(request).access_key_id == "AKIDEXAMPLE"
    assert verifier().verify(request, operation=CREATE).access_key_id == "AKIDEXAMPLE"


def test_the_host_must_be_signed():
    request = signed()
    authorization = request.header("authorization").replace("host;", "")
    assert refused(changed(request, authorization=authorization)).message.startswith("'host' must be a 'SignedHeader'")


def test_the_holder_of_a_presigned_url_cannot_choose_another_operation():
    url = sigv4.presign_url(
        "POST",
        "http://127.0.0.1:4570/",
        credentials=KEY,
        region="us-west-2",
        now=NOW,
        expires_s=60,
        service="sagemaker",
        headers={"x-amz-target": "SageMaker.ListTrainingJobs"},
    )
    bare = sigv4.presign_url(
        "POST",
        "http://127.0.0.1:4570/",
        credentials=KEY,
        region="us-west-2",
        now=NOW,
        expires_s=60,
        service="sagemaker",
    )
    headers = [("host", "127.0.0.1:4570"), ("content-type", "application/x-amz-json-1.1")]
    listing = [*headers, ("x-amz-target", "SageMaker.ListTrainingJobs")]
    operation = sagemaker("ListTrainingJobs")
    verifier().verify(HttpRequest("POST", "/", url.partition("?")[2], listing), operation=operation)
    error = refused(HttpRequest("POST", "/", bare.partition("?")[2], listing), operation)
    assert error.message.startswith("'x-amz-target' must be a 'SignedHeader'")


def test_old_signatures_are_refused_with_both_times():
    error = refused(signed(at=NOW - timedelta(seconds=SKEW_S + 1)))
    assert error.code == "InvalidSignatureException"
    assert error.message == (
        "Signature expired: 20260131T115459Z is now earlier than 20260131T115500Z (20260131T120000Z - 5 min.)"
    )


def test_signatures_from_the_future_are_refused_with_both_times():
    error = refused(signed(at=NOW + timedelta(seconds=SKEW_S + 1)))
    assert error.message == (
        "Signature not yet current: 20260131T120501Z is still later than 20260131T120500Z (20260131T120000Z + 5 min.)"
    )


@pytest.mark.parametrize("seconds", [-SKEW_S, SKEW_S])
def test_clocks_may_differ_by_the_skew(seconds):
    verifier().verify(signed(at=NOW + timedelta(seconds=seconds)), operation=CREATE)


def test_the_scope_must_match_the_day_and_the_service():
    request = signed()
    other_day = request.header("authorization").replace("/20260131/", "/20260130/")
    assert "'20260130' != '20260131'" in refused(changed(request, authorization=other_day)).message
    assert refused(signed(scope="logs")).message == "Credential should be scoped to correct service: 'sagemaker'."


def test_a_request_without_any_date_is_malformed():
    request = signed(only=["host"])
    error = refused(changed(request, x_amz_date=None))
    assert error.code == "IncompleteSignatureException"
    assert "'X-Amz-Date' or a 'Date'" in error.message


def test_a_date_header_is_accepted_in_place_of_x_amz_date():
    headers = [("host", "h"), ("date", format_datetime(NOW, usegmt=True)), ("x-amz-target", "SageMaker.X")]
    names = ("date", "host", "x-amz-target")
    canonical = sigv4.canonical_request(
        sigv4.SigningRequest("POST", "/", "", headers),
        names,
        payload_hash=sigv4.payload_hash(BODY),
        service="sagemaker",
    )
    scope = "20260131/us-west-2/sagemaker/aws4_request"
    key = sigv4.signing_key("secret", date="20260131", region="us-west-2", service="sagemaker")
    text = sigv4.string_to_sign(canonical, amz_date="20260131T120000Z", scope=scope)
    authorization = (
        f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{scope}, SignedHeaders={';'.join(names)}, "
        f"Signature={sigv4.signature(key, text)}"
    )
    request = HttpRequest("POST", "/", "", [*headers, ("Authorization", authorization)], BODY)
    assert verifier().verify(request, operation=CREATE).access_key_id == "AKIDEXAMPLE"
    assert refused(changed(request, date="never")).code == "IncompleteSignatureException"


def test_a_presigned_call_passes_until_it_expires():
    url = sigv4.presign_url(
        "GET",
        "http://h/?Action=GetCallerIdentity&Version=2011-06-15",
        credentials=KEY,
        region="us-west-2",
        service="sts",
        now=NOW,
        expires_s=60,
    )
    request = HttpRequest("GET", "/", url.partition("?")[2], [("Host", "h")])
    operation = route(request)
    clock = FakeClock(NOW + timedelta(seconds=60))
    assert verifier(clock).verify(request, operation=operation).access_key_id == "AKIDEXAMPLE"
    clock.advance(1)
    with pytest.raises(WireError, match="Signature expired"):
        verifier(clock).verify(request, operation=operation)
    tampered = HttpRequest("GET", "/", request.query.replace("GetCallerIdentity", "AssumeRole"), [("Host", "h")])
    with pytest.raises(WireError, match="does not match"):
        verifier().verify(tampered, operation=operation)


def test_a_replayed_change_is_refused_with_advice_to_sign_again():
    one = verifier()
    request = signed()
    one.verify(request, operation=CREATE)
    with pytest.raises(WireError) as caught:
        one.verify(request, operation=CREATE)
    assert (caught.value.code, caught.value.http_status) == ("ThrottlingException", 400)
    assert "Sign the request again" in caught.value.message


def test_equal_read_requests_may_be_repeated():
    one = verifier()
    request = signed(DESCRIBE)
    one.verify(request, operation=DESCRIBE)
    one.verify(request, operation=DESCRIBE)


def test_a_refused_signature_does_not_use_up_the_valid_one():
    one = verifier()
    request = signed()
    with pytest.raises(WireError):
        one.verify(changed(request, body=b"{}"), operation=CREATE)
    one.verify(request, operation=CREATE)


def test_changes_are_recognised_by_their_verb():
    looks = ["DescribeTrainingJob", "ListTags", "GetLogEvents", "FilterLogEvents", "Search", "SimulatePrincipalPolicy"]
    looks += ["BatchGetMetrics", "SearchTrainingPlanOfferings", "GetCallerIdentity"]
    changes = ["CreateTrainingJob", "StopTrainingJob", "AddTags", "PutLogEvents", "BatchPutMetrics", "Listen"]
    assert not any(is_changing(name) for name in looks)
    assert all(is_changing(name) for name in changes)


class FakeLink:
    """Replaces botocore's connection: the service answers at once, and time passes only in sleeps."""

    def __init__(self, secret: str = "secret", mode: str = "standard") -> None:
        self.clock = FakeClock(NOW)
        self.verifier = verifier(self.clock)
        self.answers: list[str] = []
        self.slept_s: list[float] = []
        session = Session()
        session.set_credentials(KEY.access_key_id, secret)
        self.client = session.create_client(
            "sagemaker",
            region_name="us-west-2",
            endpoint_url="http://127.0.0.1:9",
            config=Config(retries={"mode": mode}),
        )
        self.client.meta.events.register("before-send", self._answer)

    def call(self, operation_name: str, **params: str) -> None:
        with (
            mock.patch("botocore.auth.get_current_datetime", side_effect=lambda: self.clock.now().replace(tzinfo=None)),
            mock.patch("botocore.endpoint.time.sleep", side_effect=self._sleep),
            mock.patch("random.random", return_value=0.5),
        ):
            getattr(self.client, operation_name)(**params)

    def _sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.clock.advance(seconds)

    def _answer(self, request, **kwargs):
        headers = [(name, v.decode() if isinstance(v, bytes) else v) for name, v in request.headers.items()]
        parts = HttpRequest(request.method, "/", "", [*headers, ("Host", "127.0.0.1:9")], request.body)
        operation = route(parts)
        try:
            self.verifier.verify(parts, operation=operation)
            response = serialize(operation, {}, request_id=REQUEST_ID)
            self.answers.append("ok")
        except WireError as error:
            response = serialize_error(error, protocol=operation.protocol, request_id=REQUEST_ID)
            self.answers.append(error.code)
        raw = mock.Mock()
        raw.stream = lambda: iter([response.body])
        return AWSResponse(request.url, response.status, dict(response.headers), raw)


@pytest.mark.parametrize("mode", ["standard", "legacy"])
def test_equal_changes_of_botocore_in_one_second_pass_when_it_retries(mode):
    link = FakeLink(mode=mode)
    link.call("stop_training_job", TrainingJobName="job-1")
    link.call("stop_training_job", TrainingJobName="job-1")
    assert link.answers[:2] == ["ok", "ThrottlingException"]
    assert link.answers[-1] == "ok"
    if mode != "legacy":
        assert len(link.answers) == 3
        assert 1.0 in link.slept_s


def test_different_changes_of_botocore_in_one_second_pass_at_once():
    link = FakeLink()
    for number in range(3):
        link.call("stop_training_job", TrainingJobName=f"job-{number}")
    link.call("list_training_jobs")
    link.call("list_training_jobs")
    assert link.answers == ["ok"] * 5
    assert link.slept_s == []


def test_wrong_keys_are_not_retried_by_botocore():
    link = FakeLink(secret="guess")
    with pytest.raises(ClientError) as caught:
        link.call("list_training_jobs")
    assert caught.value.response["Error"]["Code"] == "InvalidSignatureException"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert link.answers == ["InvalidSignatureException"]


def test_signatures_are_evicted_when_they_have_expired():
    guard, clock = ReplayGuard(skew_s=SKEW_S), FakeClock(NOW)
    assert guard.is_new("00" * 32, signed_at=NOW, clock=clock)
    clock.advance(SKEW_S)
    assert not guard.is_new("00" * 32, signed_at=NOW, clock=clock)
    clock.advance(SKEW_S + 2 * BUCKET_S)
    assert guard.is_new("11" * 32, signed_at=clock.now(), clock=clock)
    assert len(guard) == 1


def test_a_clock_that_is_set_forward_and_back_allows_no_replay():
    guard, clock = ReplayGuard(skew_s=SKEW_S), FakeClock(NOW)
    assert guard.is_new("00" * 32, signed_at=NOW, clock=clock)
    clock.set_time_of_day(NOW + timedelta(days=1))
    assert guard.is_new("11" * 32, signed_at=clock.now(), clock=clock)
    clock.set_time_of_day(NOW)
    assert not guard.is_new("00" * 32, signed_at=NOW, clock=clock)


def test_a_request_that_has_changed_nothing_may_be_sent_again_unchanged():
    guard, clock = ReplayGuard(skew_s=SKEW_S), FakeClock(NOW)
    for _ in range(2):
        guard.give_back("00" * 32, signed_at=NOW)
        assert guard.is_new("00" * 32, signed_at=NOW, clock=clock)
        assert len(guard) == 1
    assert not guard.is_new("00" * 32, signed_at=NOW, clock=clock)


def test_a_full_guard_refuses_the_times_that_it_has_evicted():
    guard, clock = ReplayGuard(skew_s=SKEW_S, max_signatures=3), FakeClock(NOW)
    old, new = NOW - timedelta(seconds=100), NOW
    assert guard.is_new("00" * 32, signed_at=old, clock=clock)
    for number in range(1, 4):
        assert guard.is_new(f"{number:064x}"[::-1], signed_at=new, clock=clock)
    assert len(guard) == 3
    assert not guard.is_new("00" * 32, signed_at=old, clock=clock)
    assert not guard.is_new("ff" * 32, signed_at=old, clock=clock)
    assert guard.is_new("ff" * 32, signed_at=new + timedelta(seconds=BUCKET_S), clock=clock)
