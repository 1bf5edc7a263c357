"""Session tokens and regions of S3 requests: refusals with AWS's codes and messages, which clients act upon."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from botocore.config import Config

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.contract.launch_plan import Credentials
from clary.control.objects.authentication import authenticate
from clary.control.permissions.temporary_keys import TemporaryKey, TemporaryKeys

USER = Credentials(access_key_id="USER", secret_access_key="user-secret")
SECRETS = {USER.access_key_id: USER.secret_access_key}
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OURS = "us-west-2"
KEYS = TemporaryKeys(b"master")


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
    caller = authenticate(request, find_secret=SECRETS.get, now=now, skew_s=300, region=region, temporary=KEYS)
    return caller.access_key_id


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


def with_key(key: TemporaryKey, *, token: str | None = None, key_id: str | None = None) -> sigv4.SigningRequest:
    base = {"host": "h:1"}
    if token != "":
        base["x-amz-security-token"] = token or key.session_token
    credentials = Credentials(access_key_id=key_id or key.access_key_id, secret_access_key=key.secret_access_key)
    added = sigv4.sign(
        "GET", "/b/k", "", base, sigv4.EMPTY_HASH, credentials=credentials, region=OURS, service="s3", now=NOW
    )
    return sigv4.SigningRequest("GET", "/b/k", "", list({**base, **added}.items()))


def test_a_temporary_key_is_valid_with_its_token_until_it_expires():
    key = KEYS.make(NOW + timedelta(seconds=60))
    assert check(with_key(key)) == key.access_key_id
    assert check(with_key(key), now=NOW + timedelta(seconds=59)) == key.access_key_id
    error = refusal(with_key(key), now=NOW + timedelta(seconds=60))
    assert (error.code, error.http_status) == ("ExpiredToken", 400)


def test_a_temporary_key_is_refused_without_its_own_token():
    key, other = KEYS.make(NOW + timedelta(seconds=60)), KEYS.make(NOW + timedelta(seconds=90))
    assert refusal(with_key(key, token="")).code == "InvalidAccessKeyId"
    assert refusal(with_key(key, token=other.session_token)).code == "InvalidToken"
    assert refusal(with_key(key, key_id=other.access_key_id)).code == "InvalidToken"
    assert refusal(with_key(TemporaryKeys.forgotten().make(NOW + timedelta(seconds=60)))).code == "InvalidToken"
    later = base64.urlsafe_b64decode(key.session_token)
    longer = base64.urlsafe_b64encode((2**40).to_bytes(8, "big") + later[8:]).decode()
    assert refusal(with_key(key, token=longer)).code == "InvalidToken"
    assert refusal(signed(**{"x-amz-security-token": key.session_token})).code == "InvalidToken"


def test_an_empty_session_token_counts_as_no_token():
    assert check(signed(**{"x-amz-security-token": ""})) == "USER"


def test_another_region_is_refused_and_the_right_region_is_named():
    error = refusal(signed(region="eu-central-1"))
    assert (error.code, error.http_status) == ("AuthorizationHeaderMalformed", 400)
    assert error.details == {"Region": OURS}
    assert "'eu-central-1' is wrong; expecting 'us-west-2'" in error.message


def test_another_region_in_a_presigned_url_is_refused():
    error = refusal(presigned(region="eu-central-1"), now=datetime.now(UTC))
    assert (error.code, error.details) == ("AuthorizationQueryParametersError", {"Region": OURS})


def test_every_region_is_accepted_where_none_is_expected():
    assert check(signed(region="eu-central-1"), region=None) == "USER"
