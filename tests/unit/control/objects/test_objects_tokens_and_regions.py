"""Session tokens and regions of S3 requests: what AWS refuses is refused here, in the words that clients act upon."""

from __future__ import annotations

from datetime import UTC, datetime

import boto3
import pytest
from botocore.config import Config

from clary.contract import sigv4
from clary.contract.errors import WireError
from clary.contract.launch_plan import Credentials
from clary.control.objects.authentication import authenticate

USER = Credentials(access_key_id="USER", secret_access_key="user-secret")
SECRETS = {USER.access_key_id: USER.secret_access_key}
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OURS = "us-west-2"


def signed(*, region: str = OURS, **headers: str) -> sigv4.SigningRequest:
    base = {"host": "h:1", **headers}
    added = sigv4.sign(
        "GET", "/b/k", "", base, sigv4.EMPTY_HASH, credentials=USER, region=region, service="s3", now=NOW
    )
    return sigv4.SigningRequest("GET", "/b/k", "", list({**base, **added}.items()))


def presigned(*, region: str = OURS, token: str | None = None, version: str = "s3v4") -> sigv4.SigningRequest:
    client = boto3.client(
        "s3",
        endpoint_url="http://h:1",
        region_name=region,
        aws_access_key_id=USER.access_key_id,
        aws_secret_access_key=USER.secret_access_key,
        aws_session_token=token,
        config=Config(signature_version=version),
    )
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"}, ExpiresIn=600)
    client.close()
    path, _, query = url.removeprefix("http://h:1").partition("?")
    return sigv4.SigningRequest("GET", path, query, [("host", "h:1")])


def check(request: sigv4.SigningRequest, *, region: str | None = OURS, now: datetime = NOW) -> str:
    return authenticate(request, find_secret=SECRETS.get, now=now, skew_s=300, region=region).access_key_id


def refusal(request: sigv4.SigningRequest, **options: datetime) -> WireError:
    with pytest.raises(WireError) as error:
        check(request, **options)
    return error.value


def test_a_session_token_that_nobody_issued_is_refused():
    error = refusal(signed(**{"x-amz-security-token": "FwoGZXIvYXdzEXPIRED"}))
    assert (error.code, error.http_status) == ("InvalidToken", 400)
    assert "AWS_SESSION_TOKEN" in error.message


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_a_session_token_in_a_presigned_url_is_refused(version):
    now = datetime.now(UTC)
    assert refusal(presigned(token="garbage", version=version), now=now).code == "InvalidToken"
    assert check(presigned(version=version), now=now) == "USER"


def test_a_wrong_signature_is_told_before_a_token_is_looked_at():
    request = signed(**{"x-amz-security-token": "garbage"})
    assert refusal(sigv4.SigningRequest("GET", "/other", "", request.headers)).code == "SignatureDoesNotMatch"


def test_an_empty_session_token_is_none():
    assert check(signed(**{"x-amz-security-token": ""})) == "USER"


def test_another_region_is_refused_and_the_right_one_told():
    error = refusal(signed(region="eu-central-1"))
    assert (error.code, error.http_status) == ("AuthorizationHeaderMalformed", 400)
    assert error.details == {"Region": OURS}
    assert "'eu-central-1' is wrong; expecting 'us-west-2'" in error.message


def test_another_region_in_a_presigned_url_is_refused():
    error = refusal(presigned(region="eu-central-1"), now=datetime.now(UTC))
    assert (error.code, error.details) == ("AuthorizationQueryParametersError", {"Region": OURS})


def test_every_region_is_taken_where_none_is_expected():
    assert check(signed(region="eu-central-1"), region=None) == "USER"
