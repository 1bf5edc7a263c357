"""Signatures of S3 requests: AWS's published examples, boto3's presigned URLs, and faulty ones."""

from __future__ import annotations

import base64
import hmac
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit

import boto3
import pytest
from botocore.config import Config

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.contract.launch_plan import Credentials
from clary.control.objects.authentication import Caller, authenticate

# Amazon S3 API reference, "Examples: Signature Calculations" and "Authenticating Requests: Using Query Parameters".
EXAMPLE_KEY = "AKIAIOSFODNN7EXAMPLE"
EXAMPLE_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EXAMPLE_HOST = "examplebucket.s3.amazonaws.com"
EXAMPLE_TIME = datetime(2013, 5, 24, tzinfo=UTC)
EMPTY = sigv4.EMPTY_HASH

USER = Credentials(access_key_id="USER", secret_access_key="user-secret")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECRETS = {EXAMPLE_KEY: EXAMPLE_SECRET, USER.access_key_id: USER.secret_access_key}


def check(request: sigv4.SigningRequest, *, now: datetime = NOW) -> Caller:
    return authenticate(request, find_secret=SECRETS.get, now=now, skew_s=300)


def refused(request: sigv4.SigningRequest, *, now: datetime = NOW) -> tuple[str, int]:
    with pytest.raises(WireError) as error:
        check(request, now=now)
    return error.value.code, error.value.http_status


def signed(
    path: str = "/b/k", *, headers: dict[str, str] | None = None, at: datetime = NOW, service: str = "s3", **extra: str
) -> sigv4.SigningRequest:
    base = {"host": "h:1", **(headers or {})}
    added = sigv4.sign("GET", path, "", base, EMPTY, credentials=USER, region="eu-west-1", service=service, now=at)
    return sigv4.SigningRequest("GET", path, "", list({**base, **added, **extra}.items()))


def test_published_example_of_a_get_is_accepted() -> None:
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={EXAMPLE_KEY}/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )
    headers = [
        ("Host", EXAMPLE_HOST),
        ("Authorization", authorization),
        ("Range", "bytes=0-9"),
        ("x-amz-content-sha256", EMPTY),
        ("x-amz-date", "20130524T000000Z"),
    ]
    caller = check(sigv4.SigningRequest("GET", "/test.txt", "", headers), now=EXAMPLE_TIME)
    assert (caller.access_key_id, caller.payload_hash) == (EXAMPLE_KEY, EMPTY)
    assert caller.seed is not None
    assert caller.seed.scope == "20130524/us-east-1/s3/aws4_request"


def test_published_example_of_a_presigned_get_is_accepted_until_it_expires() -> None:
    query = (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2F"
        "aws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&"
        "X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )
    request = sigv4.SigningRequest("GET", "/test.txt", query, [("host", EXAMPLE_HOST)])
    assert check(request, now=EXAMPLE_TIME + timedelta(hours=24)).payload_hash == sigv4.UNSIGNED_PAYLOAD
    assert refused(request, now=EXAMPLE_TIME + timedelta(hours=24, seconds=1)) == ("AccessDenied", 403)
    assert refused(request, now=EXAMPLE_TIME - timedelta(minutes=6)) == ("AccessDenied", 403)
    other = sigv4.SigningRequest("GET", "/test.txt", query + "&acl=", [("host", EXAMPLE_HOST)])
    assert refused(other, now=EXAMPLE_TIME) == ("SignatureDoesNotMatch", 403)


@pytest.mark.parametrize(("offset_s", "is_taken"), [(-300, True), (300, True), (-301, False), (301, False)])
def test_the_time_of_a_request_may_differ_by_the_skew_and_no_more(offset_s: int, is_taken: bool) -> None:
    request = signed(at=NOW + timedelta(seconds=offset_s))
    if is_taken:
        assert check(request).access_key_id == "USER"
    else:
        assert refused(request) == ("RequestTimeTooSkewed", 403)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (sigv4.SigningRequest("GET", "/", "", [("host", "h")]), ("AccessDenied", 403)),
        (sigv4.SigningRequest("GET", "/", "", [("host", "h"), ("authorization", "AWS A:B")]), ("InvalidRequest", 400)),
        (
            sigv4.SigningRequest("GET", "/", "", [("host", "h"), ("authorization", "AWS4-HMAC-SHA256 nonsense")]),
            ("AuthorizationHeaderMalformed", 400),
        ),
        (sigv4.SigningRequest("GET", "/", "X-Amz-Signature=0", []), ("AuthorizationQueryParametersError", 400)),
        (signed(service="sagemaker"), ("AuthorizationHeaderMalformed", 400)),
        (signed(host="other:1"), ("SignatureDoesNotMatch", 403)),
        (signed(**{"x-amz-meta-added": "1"}), ("AccessDenied", 403)),
        (signed(**{"x-amz-date": "20260228T120000Z"}), ("RequestTimeTooSkewed", 403)),
        (signed(**{"x-amz-date": "yesterday"}), ("AuthorizationHeaderMalformed", 400)),
        (signed(**{"x-amz-content-sha256": ""}), ("MissingSecurityHeader", 400)),
        (signed(**{"x-amz-content-sha256": "0" * 64}), ("SignatureDoesNotMatch", 403)),
    ],
)
def test_a_request_with_a_missing_or_false_signature_is_refused(
    request_: sigv4.SigningRequest, expected: tuple[str, int]
) -> None:
    assert refused(request_) == expected


def test_credential_of_another_day_than_the_request_is_refused() -> None:
    request = signed(at=datetime(2026, 3, 1, 0, 1, tzinfo=UTC))
    moved = [(n, "20260228T235959Z" if n == "x-amz-date" else v) for n, v in request.headers]
    changed = sigv4.SigningRequest("GET", "/b/k", "", moved)
    assert refused(changed, now=datetime(2026, 3, 1, tzinfo=UTC)) == ("AuthorizationHeaderMalformed", 400)


def test_a_path_that_is_encoded_differently_than_when_signed_is_accepted() -> None:
    request = signed("/b/k%2A%2Bx")
    assert check(sigv4.SigningRequest("GET", "/b/k*+x", "", request.headers)).access_key_id == "USER"


@pytest.mark.parametrize("parameters", [{}, {"ResponseContentType": "text/x y"}, {"VersionId": "a b/c"}])
def test_a_presigned_url_of_version_2_from_boto3_is_accepted_until_it_expires(parameters: dict[str, str]) -> None:
    client = boto3.client(
        "s3",
        endpoint_url="http://localhost:1",
        region_name="us-west-2",
        aws_access_key_id="USER",
        aws_secret_access_key="user-secret",
        config=Config(signature_version="s3"),
    )
    url = client.generate_presigned_url(
        "get_object", Params={"Bucket": "bucket", "Key": "a b/ü+", **parameters}, ExpiresIn=60
    )
    client.close()
    parts = urlsplit(url)
    now = datetime.now(UTC)
    request = sigv4.SigningRequest("GET", parts.path, parts.query, [("host", "localhost:1")])
    assert check(request, now=now) == Caller(access_key_id="USER", payload_hash=sigv4.UNSIGNED_PAYLOAD)
    assert refused(request, now=now + timedelta(seconds=62)) == ("AccessDenied", 403)
    for changed in (
        sigv4.SigningRequest("PUT", parts.path, parts.query, request.headers),
        sigv4.SigningRequest("GET", parts.path + "x", parts.query, request.headers),
        sigv4.SigningRequest("GET", parts.path, parts.query + "&acl", request.headers),
        sigv4.SigningRequest("GET", parts.path, parts.query, [*request.headers, ("x-amz-acl", "public-read")]),
    ):
        assert refused(changed, now=now) == ("SignatureDoesNotMatch", 403)


def test_type_and_digest_in_a_url_of_version_2_are_signed() -> None:
    client = boto3.client(
        "s3",
        region_name="us-west-2",
        aws_access_key_id="USER",
        aws_secret_access_key="user-secret",
        config=Config(signature_version="s3", s3={"addressing_style": "path"}),
    )
    params = {"Bucket": "bucket", "Key": "k", "ContentType": "text/plain", "ContentMD5": "eB5eJF1ptWaXm4bijSPyxw=="}
    parts = urlsplit(client.generate_presigned_url("put_object", Params=params, ExpiresIn=60))
    client.close()
    now = datetime.now(UTC)
    for headers in ([], [("Content-Type", "text/plain"), ("Content-MD5", params["ContentMD5"])]):
        assert check(sigv4.SigningRequest("PUT", parts.path, parts.query, headers), now=now)
    for query, headers in (
        (parts.query.replace("plain", "html"), []),
        (parts.query.replace("eB5e", "eB5f"), []),
        (parts.query, [("Content-Type", "text/html")]),
        (parts.query, [("Content-MD5", "other")]),
    ):
        changed = sigv4.SigningRequest("PUT", parts.path, query, headers)
        assert refused(changed, now=now) == ("SignatureDoesNotMatch", 403)


def version_2_url(*, bucket: str, key: str, **options: str) -> tuple[str, str, str]:
    """Return the host, path and query of a URL that boto3 has presigned."""
    config = Config(signature_version="s3", s3={"addressing_style": options.pop("style", "path")})
    client = boto3.client(
        "s3", region_name="us-west-2", aws_access_key_id="USER", aws_secret_access_key="user-secret", config=config
    )
    url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=60)
    client.close()
    parts = urlsplit(url)
    return parts.netloc, parts.path, parts.query


def test_a_presigned_url_of_version_2_opens_no_bucket_named_by_another_host_header() -> None:
    host, path, query = version_2_url(bucket="bucket", key="key")
    now = datetime.now(UTC)
    request = sigv4.SigningRequest("GET", path, query, [("host", host)])
    options = {"find_secret": SECRETS.get, "now": now, "skew_s": 300}
    assert authenticate(request, **options, host_bucket=None).access_key_id == "USER"  # type: ignore[arg-type]
    with pytest.raises(WireError, match="does not match"):
        authenticate(request, **options, host_bucket="other-bucket")  # type: ignore[arg-type]


def version_2_query(resource: str, *, amz_lines: str = "", more: str = "") -> str:
    """Return the query of a URL presigned for a PUT, with further parameters."""
    expires = int(NOW.timestamp()) + 60
    text = f"PUT\n\n\n{expires}\n{amz_lines}{resource}"
    digest = base64.b64encode(hmac.digest(USER.secret_access_key.encode(), text.encode(), "sha1")).decode()
    return f"AWSAccessKeyId=USER&Signature={quote(digest, safe='')}&Expires={expires}{more}"


@pytest.mark.parametrize(
    ("added", "headers"),
    [
        ("&x-amz-acl=public-read&x-amz-acl=private", []),
        ("&X-Amz-Acl=public-read&x-amz-acl=private", []),
        ("&x-amz-acl=public-read", [("x-amz-acl", "private")]),
        ("", [("x-amz-acl", "public-read"), ("X-Amz-Acl", "private")]),
        ("&x-amz-acl=private&content-type=text/html&content-type=", []),
        ("&x-amz-acl=private", [("Content-MD5", "other"), ("content-md5", "")]),
    ],
)
def test_a_presigned_url_of_version_2_holds_no_value_that_is_not_signed(
    added: str, headers: list[tuple[str, str]]
) -> None:
    query = version_2_query("/b/k", amz_lines="x-amz-acl:private\n", more=added)
    assert refused(sigv4.SigningRequest("PUT", "/b/k", query, headers)) == ("InvalidArgument", 400)


@pytest.mark.parametrize("headers", [[], [("x-amz-acl", "private")]])
def test_a_header_may_repeat_what_a_presigned_url_of_version_2_names(headers: list[tuple[str, str]]) -> None:
    query = version_2_query("/b/k", amz_lines="x-amz-acl:private\n", more="&x-amz-acl=private")
    assert check(sigv4.SigningRequest("PUT", "/b/k", query, headers)).access_key_id == "USER"


def test_presigned_url_of_version_2_may_name_its_bucket_in_the_host() -> None:
    host, path, query = version_2_url(bucket="bucket", key="key", style="virtual")
    assert host.startswith("bucket.s3")
    assert path == "/key"
    request = sigv4.SigningRequest("GET", path, query, [("host", host)])
    now = datetime.now(UTC)
    assert authenticate(request, find_secret=SECRETS.get, now=now, skew_s=300, host_bucket="bucket")


def test_presigned_url_of_version_2_with_a_number_of_thousands_of_digits_is_refused() -> None:
    request = sigv4.SigningRequest("GET", "/b/k", f"AWSAccessKeyId=USER&Signature=x&Expires={'9' * 5000}", [])
    assert refused(request) == ("AccessDenied", 403)


@pytest.mark.parametrize(("days", "code"), [(6, None), (8, "AccessDenied"), (50 * 365, "AccessDenied")])
def test_a_presigned_url_of_version_2_is_valid_for_a_week_at_most(days: int, code: str | None) -> None:
    expires = int(NOW.timestamp()) + days * 86400
    text = f"GET\n\n\n{expires}\n/b/k"
    digest = base64.b64encode(hmac.digest(USER.secret_access_key.encode(), text.encode(), "sha1")).decode()
    query = f"AWSAccessKeyId=USER&Signature={quote(digest, safe='')}&Expires={expires}"
    request = sigv4.SigningRequest("GET", "/b/k", query, [])
    if code is None:
        assert check(request).access_key_id == "USER"
    else:
        assert refused(request) == (code, 403)
