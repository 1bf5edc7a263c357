"""Sizes of bodies that a request head is allowed: large for known clients, very small for all others."""

from datetime import UTC, datetime

import pytest
from own_pages import FewParts

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.contract.launch_plan import Credentials
from clary.control.objects.deletions.deletion_limit import MOST_OF_A_KEY, DeletionLimit
from clary.control.server.aws_handler import AwsHandler
from clary.control.server.edge.gates import STRANGER_BODY_BYTES, Admission, Refusal
from clary.control.server.edge.guesses import MAX_WRONG
from clary.control.server.edge.sessions import Sessions
from clary.control.wire.messages import HttpRequest
from clary.control.wire.signatures import SignatureVerifier
from clary.testing.fake_clock import FakeClock

KEY = Credentials(access_key_id="AKID", secret_access_key="secret")
MOST = 1 << 20


@pytest.fixture
def clock():
    return FakeClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def aws(clock):
    verifier = SignatureVerifier({KEY.access_key_id: KEY.secret_access_key}.get, clock, skew_s=300)
    return AwsHandler(None, verifier, max_body_bytes=MOST)


def signed(clock, *, body=b"{}", key=KEY, with_hash=True, **changed):
    headers = {"host": "h", "content-type": "application/x-amz-json-1.1", "x-amz-target": "SageMaker.ListTrainingJobs"}
    digest = sigv4.payload_hash(body)
    options = {"credentials": key, "region": "us-west-2", "service": "sagemaker", "now": clock.now()}
    headers |= sigv4.sign("POST", "/", "", headers, digest, **options)
    if not with_hash:  # most clients sign without the hash of the body
        del headers["x-amz-content-sha256"]
        names = tuple(sorted(headers.keys() - {"authorization"}))
        text = sigv4.canonical_request(
            sigv4.SigningRequest("POST", "/", "", list(headers.items())),
            names,
            payload_hash=digest,
            service="sagemaker",
        )
        scope = f"{headers['x-amz-date'][:8]}/us-west-2/sagemaker/aws4_request"
        signing_key = sigv4.signing_key(key.secret_access_key, date=scope[:8], region="us-west-2", service="sagemaker")
        signature = sigv4.signature(
            signing_key, sigv4.string_to_sign(text, amz_date=headers["x-amz-date"], scope=scope)
        )
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={key.access_key_id}/{scope}, SignedHeaders={';'.join(names)}, "
            f"Signature={signature}"
        )
    return HttpRequest("POST", "/", "", list((headers | changed).items()), remote="127.0.0.1")


def test_a_head_with_the_hash_of_its_body_identifies_its_client(aws, clock):
    verdict = aws.admit(signed(clock))
    assert verdict == Admission(client="key AKID", max_body_bytes=MOST, is_known=True)


def test_a_head_without_the_hash_counts_against_its_address(aws, clock):
    verdict = aws.admit(signed(clock, with_hash=False))
    assert verdict == Admission(client="somebody at 127.0.0.1", max_body_bytes=MOST, is_known=False)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"key": Credentials(access_key_id="NOBODY", secret_access_key="x")}, b"UnrecognizedClientException"),
        ({"key": Credentials(access_key_id="AKID", secret_access_key="wrong")}, b"InvalidSignatureException"),
        ({"x-amz-target": "SageMaker.DeleteExperiment"}, b"InvalidSignatureException"),
        ({"x-amz-content-sha256": "0" * 64}, b"InvalidSignatureException"),
        ({"authorization": "nonsense"}, b"IncompleteSignatureException"),
        ({"x-amz-date": "20200101T000000Z"}, b"InvalidSignatureException"),
    ],
)
def test_a_head_that_can_not_be_valid_with_any_body_is_refused_before_the_body(aws, clock, changes, code):
    verdict = aws.admit(signed(clock, **changes))
    assert isinstance(verdict, Refusal)
    assert code in verdict.answer.body


def test_an_expired_signature_is_refused_before_the_body(aws, clock):
    head = signed(clock)
    clock.advance(301)
    assert isinstance(aws.admit(head), Refusal)


def test_a_head_without_a_signature_is_refused_before_the_body(aws):
    head = HttpRequest("POST", "/", "", [("X-Amz-Target", "SageMaker.ListTrainingJobs")])
    assert aws.admit(head).answer.status == 403


@pytest.fixture
def own_pages(clock, tmp_path):
    return FewParts(sessions=Sessions(b"key", tmp_path / "revoked", clock)).handler


def head_of(path, token=None, method="POST"):
    headers = [("Host", "h")] + ([("Authorization", f"Bearer {token}")] if token is not None else [])
    return HttpRequest(method, path, "", headers, remote="127.80.0.1")


def test_the_sign_in_page_accepts_a_few_kilobytes(own_pages):
    for head in (head_of("/clary/v1/session"), head_of("/clary/v1/session-code", "token")):
        verdict = own_pages.admit(head)
        assert (verdict.max_body_bytes, verdict.is_known) == (STRANGER_BODY_BYTES, False)
    assert own_pages.admit(head_of("/clary/v1/session-code")).answer.status == 403


@pytest.mark.parametrize("path", ["/clary/v1/jobs/x/stop", "/clary/v1/spot", "/clary/v1/nothing"])
def test_the_owner_s_pages_accept_a_body_from_the_owner_only(own_pages, path):
    assert own_pages.admit(head_of(path, "token")).client == "owner"
    assert own_pages.admit(head_of(path)).answer.status == 401
    assert own_pages.admit(head_of(path, "wrong")).answer.status == 403


def test_guesses_of_the_admin_token_are_slowed_down_and_the_right_token_passes(own_pages):
    head = head_of("/clary/v1/jobs/x", "guess")
    verdicts = [own_pages.admit(head) for _ in range(MAX_WRONG + 2)]
    assert [verdict.answer.status for verdict in verdicts] == [403] * MAX_WRONG + [429] * 2
    assert verdicts[0].delay_s == 0 < verdicts[-1].delay_s
    assert own_pages.admit(head_of("/clary/v1/jobs/x", "token")).is_known


def test_lists_of_keys_to_delete_are_bounded_by_access_key():
    limit = DeletionLimit()
    held = [limit.entered("job") for _ in range(MOST_OF_A_KEY)]
    for one in held:
        one.__enter__()
    with pytest.raises(WireError) as refused, limit.entered("job"):
        pass
    assert (refused.value.code, refused.value.http_status) == ("SlowDown", 503)
    with limit.entered("owner"):
        pass
    held[0].__exit__(None, None, None)
    with limit.entered("job"):
        pass
