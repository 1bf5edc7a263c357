"""The S3 front with a real SeaweedFS behind it: requests that it must refuse, and keys that it must not alias."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import itertools
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore.exceptions import ClientError
from objects_service import (
    BUCKET,
    JOB,
    MIB,
    NARROW,
    NARROW_PLACE,
    REGION,
    STORE,
    USER,
    Service,
    ServiceThread,
    keys_under,
    read,
    refusal,
    send,
    send_raw,
)

from clary.contract import sigv4
from clary.contract.launch_plan import Credentials


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    thread = ServiceThread(tmp_path_factory.mktemp("home"))
    yield thread.service
    thread.close()


@pytest.fixture(params=["http", "https"])
def s3(request: pytest.FixtureRequest, service: Service) -> Iterator[Any]:
    client = service.client(secure=request.param == "https")
    yield client
    client.close()


@pytest.fixture
def plain(service: Service) -> Iterator[Any]:
    client = service.client()
    yield client
    client.close()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"{hashlib.sha1(request.node.name.encode()).hexdigest()[:12]}/object"


# Authentication


@pytest.mark.parametrize(
    ("credentials", "code"),
    [
        (Credentials(access_key_id="NOBODY", secret_access_key="x"), "InvalidAccessKeyId"),
        (Credentials(access_key_id=USER.access_key_id, secret_access_key="wrong"), "SignatureDoesNotMatch"),
        (STORE, "InvalidAccessKeyId"),
    ],
)
def test_wrong_keys_are_refused(service: Service, key: str, credentials: Credentials, code: str) -> None:
    for method in ("PUT", "GET"):
        answer = send(service, method, f"/{BUCKET}/{key}", credentials=credentials)
        assert (answer.status, answer.code) == (403, code)
    answer = send(service, "HEAD", f"/{BUCKET}/{key}", credentials=credentials)
    assert (answer.status, answer.body) == (403, b"")


def test_every_job_has_a_separate_key(service: Service, key: str) -> None:
    client = service.client(credentials=JOB)
    client.put_object(Bucket=BUCKET, Key=key, Body=b"by the job")
    assert read(client, key) == b"by the job"
    client.close()


def test_requests_signed_at_another_time_are_refused(service: Service, key: str) -> None:
    for offset in (timedelta(minutes=-6), timedelta(minutes=6)):
        answer = send(service, "GET", f"/{BUCKET}/{key}", now=datetime.now(UTC) + offset)
        assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed")


def test_anonymous_requests_are_refused(service: Service, key: str) -> None:
    host = {"host": urlsplit(service.http_url).netloc}
    for method in ("GET", "PUT", "DELETE"):
        answer = send_raw(service, method, f"/{BUCKET}/{key}", host, b"")
        assert (answer.status, answer.code) == (403, "AccessDenied")


def test_request_without_a_payload_hash_is_refused(service: Service, key: str) -> None:
    url = urlsplit(service.http_url)
    headers = {"host": url.netloc}
    added = sigv4.sign(
        "GET", "/", "", headers, sigv4.EMPTY_HASH, credentials=USER, region=REGION, service="s3", now=datetime.now(UTC)
    )
    del added["x-amz-content-sha256"]
    answer = send_raw(service, "GET", "/", {**headers, **added}, b"")
    assert (answer.status, answer.code) == (400, "MissingSecurityHeader")


@pytest.mark.parametrize("size", [10, 3 * MIB])
def test_tampered_body_is_refused_and_nothing_stored(service: Service, plain: Any, key: str, size: int) -> None:
    plain.put_object(Bucket=BUCKET, Key=key, Body=b"before")
    genuine = b"a" * size
    payload_hash = hashlib.sha256(genuine).hexdigest()
    for tampered in (b"b" + genuine[1:], genuine[:-1] + b"b"):
        answer = send(service, "PUT", f"/{BUCKET}/{key}", body=tampered, payload_hash=payload_hash)
        assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")
    assert read(plain, key) == b"before"
    answer = send(service, "PUT", f"/{BUCKET}/{key}-new", body=b"b" + genuine[1:], payload_hash=payload_hash)
    assert answer.status == 400
    assert keys_under(plain, f"{key}-new") == []


def test_dropped_body_is_refused(service: Service, key: str) -> None:
    answer = send(service, "PUT", f"/{BUCKET}/{key}", body=b"", payload_hash=hashlib.sha256(b"x").hexdigest())
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")


@pytest.mark.parametrize(
    "headers",
    [{"x-amz-copy-source": f"/{BUCKET}/other"}, {"x-amz-meta-added": "1"}, {"x-amz-acl": "public-read"}],
)
def test_headers_added_after_signing_are_refused(service: Service, key: str, headers: dict[str, str]) -> None:
    answer = send(service, "PUT", f"/{BUCKET}/{key}", body=b"x", wire_headers=headers)
    assert (answer.status, answer.code) == (403, "AccessDenied")


def test_changed_path_or_query_is_refused(service: Service, key: str) -> None:
    url = urlsplit(service.http_url)
    headers = {"host": url.netloc}
    added = sigv4.sign(
        "GET",
        f"/{BUCKET}/{key}",
        "",
        headers,
        sigv4.EMPTY_HASH,
        credentials=USER,
        region=REGION,
        service="s3",
        now=datetime.now(UTC),
    )
    for path in (f"/{BUCKET}/{key}x", f"/{BUCKET}/{key}?tagging"):
        answer = send_raw(service, "GET", path, {**headers, **added}, b"")
        assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


def fetch(url: str, *, method: str = "GET", body: bytes | None = None, cafile: str | None = None) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=cafile) if cafile else None
    request = urllib.request.Request(url, method=method, data=body)
    if body is not None:
        request.add_header("Content-Type", "")
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize("version", ["s3v4", None])
@pytest.mark.parametrize("secure", [False, True])
def test_presigned_urls_read_and_write_until_they_expire(
    service: Service, key: str, version: str | None, *, secure: bool
) -> None:
    config = {"signature_version": version} if version else {}  # boto3 signs by version 2 by default
    client = service.client(secure=secure, **config)
    cafile = service.authority if secure else None
    name = {"Bucket": BUCKET, "Key": f"{key} ü+"}
    put = client.generate_presigned_url("put_object", Params=name)
    assert ("AWSAccessKeyId=" in put) == (version is None)
    assert fetch(put, method="PUT", body=b"presigned", cafile=cafile)[0] == 200
    get = client.generate_presigned_url("get_object", Params=name, ExpiresIn=60)
    assert fetch(get, cafile=cafile) == (200, b"presigned")
    assert fetch(get.replace("object", "objecu", 1), cafile=cafile)[0] == 403
    assert fetch(get, method="DELETE", cafile=cafile)[0] == 403
    typed = client.generate_presigned_url("get_object", Params={**name, "ResponseContentType": "text/x"})
    assert fetch(typed, cafile=cafile)[0] == 200
    expired = client.generate_presigned_url("get_object", Params=name, ExpiresIn=1)
    deadline = time.monotonic() + 5
    while fetch(expired, cafile=cafile)[0] == 200 and time.monotonic() < deadline:
        time.sleep(0.2)
    status, body = fetch(expired, cafile=cafile)
    assert status == 403
    assert b"Request has expired" in body
    client.close()


def test_a_presigned_url_of_version_2_may_hold_type_and_digest(service: Service, plain: Any, key: str) -> None:
    digest = base64.b64encode(hashlib.md5(b"typed", usedforsecurity=False).digest()).decode()
    params = {"Bucket": BUCKET, "Key": key, "ContentType": "text/plain", "ContentMD5": digest}
    url = plain.generate_presigned_url("put_object", Params=params)
    assert "AWSAccessKeyId=" in url
    target = url.removeprefix(service.http_url)
    host = {"Host": urlsplit(service.http_url).netloc}
    assert send_raw(service, "PUT", target, {**host, "Content-Type": "text/html"}, b"typed").status == 403
    assert send_raw(service, "PUT", target, {**host, "Content-MD5": digest}, b"other").status == 400
    assert send_raw(service, "PUT", target, host, b"other").code == "BadDigest"
    for headers in ({}, {"Content-Type": "text/plain", "Content-MD5": digest}):
        assert send_raw(service, "PUT", target, {**host, **headers}, b"typed").status == 200
        found = plain.head_object(Bucket=BUCKET, Key=key)
        assert (found["ContentType"], found["ContentLength"]) == ("text/plain", 5)
        plain.delete_object(Bucket=BUCKET, Key=key)


# Invalid keys and buckets


@pytest.mark.parametrize(
    "name",
    ["%2F", "x%2Fy", "ü/ñ", "sp ace", "plus+", "q?", "h#", "*", '"', "'", "<&>", "a=b&c", "\n", "\x01", "e\u0301"],
)
def test_unusual_keys_are_stored_under_exactly_their_names(plain: Any, key: str, name: str) -> None:
    full = f"{key}/{name}"
    plain.put_object(Bucket=BUCKET, Key=full, Body=name.encode())
    assert keys_under(plain, key) == [full]
    assert read(plain, full) == name.encode()
    plain.delete_object(Bucket=BUCKET, Key=full)
    assert keys_under(plain, key) == []


@pytest.mark.parametrize(
    "name", ["a/./b", "a/../b", "..", "a\0b", ".uploads/a", "x.versions/a", "s" * 256, "a/.\U0010fffd/b"]
)
def test_keys_that_the_store_would_alias_are_refused_in_every_operation(
    service: Service, plain: Any, name: str
) -> None:
    plain.put_object(Bucket=BUCKET, Key="a/b", Body=b"other")
    path = f"/{BUCKET}/{quote(name, safe='/')}"
    answer = send(service, "PUT", path, body=b"x")
    assert (answer.status, answer.code) == (400, "InvalidArgument")
    assert send(service, "DELETE", path).status == 400
    assert (send(service, "GET", path).code, send(service, "HEAD", path).status) == ("NoSuchKey", 404)
    copied = send(service, "PUT", f"/{BUCKET}/copied", headers={"x-amz-copy-source": path})
    assert copied.code == "NoSuchKey"
    escaped = name.replace("\0", "").encode("ascii", "xmlcharrefreplace").decode()
    if escaped == name:
        document = f"<Delete><Object><Key>a/c</Key></Object><Object><Key>{name}</Key></Object></Delete>".encode()
        deleted = send(service, "POST", f"/{BUCKET}?delete=", body=document)
        assert (deleted.status, deleted.code) == (400, "InvalidArgument")
    assert read(plain, "a/b") == b"other"


@pytest.mark.parametrize("prefix", ["a/.\U0010fffd", "a/.\U0010fffd/b c+&"])
def test_no_key_has_a_prefix_with_the_mark_of_stored_names(plain: Any, prefix: str) -> None:
    plain.put_object(Bucket=BUCKET, Key="a/b", Body=b"other")
    second = plain.list_objects_v2(Bucket=BUCKET, Prefix=prefix, Delimiter="/", StartAfter="a+b", MaxKeys=7)
    assert (second["KeyCount"], second["IsTruncated"], "Contents" in second) == (0, False, False)
    assert [second[name] for name in ("Name", "Prefix", "Delimiter", "StartAfter", "MaxKeys")] == [
        BUCKET,
        prefix,
        "/",
        "a+b",
        7,
    ]
    first = plain.list_objects(Bucket=BUCKET, Prefix=prefix, Marker="m")
    assert [first[name] for name in ("Marker", "MaxKeys", "IsTruncated")] == ["m", 1000, False]
    assert first["Prefix"] == quote(prefix), "botocore requests encoded names, but decodes all except this one"
    versions = plain.list_object_versions(Bucket=BUCKET, Prefix=prefix)
    assert [versions[name] for name in ("Prefix", "KeyMarker", "IsTruncated")] == [prefix, "", False]
    uploads = plain.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)
    assert [uploads[name] for name in ("Bucket", "Prefix", "MaxUploads")] == [BUCKET, prefix, 1000]
    with pytest.raises(ClientError) as error:
        plain.list_objects_v2(Bucket="never-made", Prefix=prefix)
    assert refusal(error) == ("NoSuchBucket", 404)


@pytest.mark.parametrize("bucket", ["status", "healthz", "readyz"])
def test_pages_of_the_store_itself_are_no_buckets(service: Service, plain: Any, key: str, bucket: str) -> None:
    made = send(service, "PUT", f"/{bucket}")
    assert (made.status, made.code) == (400, "InvalidBucketName")
    for method, path in (
        ("GET", f"/{bucket}"),
        ("GET", f"/{bucket}/k"),
        ("PUT", f"/{bucket}/k"),
        ("DELETE", f"/{bucket}"),
    ):
        answer = send(service, method, path)
        assert (answer.status, answer.code) == (404, "NoSuchBucket")
    assert send(service, "HEAD", f"/{bucket}").status == 404
    source = {"x-amz-copy-source": f"/{bucket}/k"}
    assert send(service, "PUT", f"/{BUCKET}/{key}", headers=source).code == "NoSuchBucket"


@pytest.mark.parametrize(
    "name",
    [
        "x-amz-write-offset-bytes",
        "x-amz-mp-object-size",
        "x-amz-if-match-size",
        "X-Amz-If-Match-Last-Modified-Time",
    ],
)
def test_headers_that_the_store_would_ignore_are_refused(service: Service, plain: Any, key: str, name: str) -> None:
    plain.put_object(Bucket=BUCKET, Key=key, Body=b"kept")
    for method in ("PUT", "DELETE"):
        answer = send(service, method, f"/{BUCKET}/{key}", headers={name: "1"})
        assert (answer.status, answer.code) == (501, "NotImplemented")
    assert read(plain, key) == b"kept"


def test_a_copy_source_may_encode_its_slashes(service: Service, plain: Any, key: str) -> None:
    plain.put_object(Bucket=BUCKET, Key=f"{key}/a b+%2F", Body=b"a")
    source = quote(f"{BUCKET}/{key}/a b+%2F", safe="")
    assert send(service, "PUT", f"/{BUCKET}/{key}/c", headers={"x-amz-copy-source": source}).status == 200
    assert read(plain, f"{key}/c") == b"a"


def test_several_copy_sources_are_refused(service: Service, plain: Any, key: str) -> None:
    plain.put_object(Bucket=BUCKET, Key=f"{key}/a", Body=b"a")
    source = quote(f"{BUCKET}/{key}/a", safe="")
    target = f"/{BUCKET}/{key}/c?x-amz-copy-source={source}"
    assert send(service, "PUT", target, headers={"x-amz-copy-source": source}).code == "InvalidArgument"
    assert send(service, "PUT", f"{target}&X-Amz-Copy-Source={source}").code == "InvalidArgument"
    assert keys_under(plain, f"{key}/c") == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Forwarded-Host", "other.example:8443"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Port", "8443"),
        ("X-Forwarded-Prefix", "/clary"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("Forwarded", "for=192.0.2.1;host=other.example"),
        ("X-Real-IP", "192.0.2.1"),
        ("Via", "1.1 other.example"),
    ],
)
def test_a_reverse_proxy_may_add_its_headers(service: Service, key: str, name: str, value: str) -> None:
    path = f"/{BUCKET}/{key}"
    assert send(service, "PUT", path, body=b"a", wire_headers={name: value}).status == 200
    answer = send(service, "GET", path, wire_headers={name: value})
    assert (answer.status, answer.body) == (200, b"a")


def test_a_client_of_directory_buckets_can_read_its_refusal(service: Service) -> None:
    scope = "CLARYUSER/20260101/us-west-2/s3express/aws4_request"
    value = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature={'0' * 64}"
    headers = {"Host": "h", "Authorization": value, "x-amz-date": "20260101T000000Z", "x-amz-content-sha256": "x"}
    query = f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={quote(scope, safe='')}&X-Amz-Date=20260101T000000Z"
    query += f"&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature={'0' * 64}"
    for answer in (
        send_raw(service, "GET", "/b--usw2-az1--x-s3?session", headers, b""),
        send_raw(service, "GET", f"/b--usw2-az1--x-s3/k?{query}", {"Host": "h"}, b""),
    ):
        assert answer.headers["content-type"] == "application/xml"
        assert (answer.status, answer.code) == (501, "NotImplemented")


@pytest.mark.parametrize(
    ("method", "query", "code"),
    [
        ("DELETE", "uploadId=0a/../../other", "NoSuchUpload"),
        ("GET", "uploadId=..", "NoSuchUpload"),
        ("PUT", "partNumber=1&uploadId=0a%5C..", "NoSuchUpload"),
        ("GET", "versionId=..%2F..%2Fother%2Fx", "InvalidArgument"),
        ("DELETE", "versionId=a%00", "InvalidArgument"),
    ],
)
def test_ids_with_parts_of_a_path_are_refused(service: Service, key: str, method: str, query: str, code: str) -> None:
    assert send(service, method, f"/{BUCKET}/{key}?{query}", body=b"x" if method == "PUT" else b"").code == code


def test_a_copy_source_with_a_version_that_is_a_path_is_refused(service: Service, plain: Any, key: str) -> None:
    plain.put_object(Bucket=BUCKET, Key=f"{key}/a", Body=b"a")
    headers = {"x-amz-copy-source": f"/{BUCKET}/{quote(key)}/a?versionId=../../other/x"}
    assert send(service, "PUT", f"/{BUCKET}/{key}/b", headers=headers).code == "InvalidArgument"


@pytest.mark.parametrize("name", ["seaweed-x-amz-version-id", "X-Seaweedfs-Source"])
def test_headers_of_the_store_itself_are_refused(service: Service, key: str, name: str) -> None:
    answer = send(service, "PUT", f"/{BUCKET}/{key}", body=b"x", headers={name: "1"})
    assert (answer.status, answer.code) == (400, "InvalidArgument")


@pytest.fixture
def neighbours(plain: Any) -> list[str]:
    """Store objects of a job between objects of others; return the job's keys."""
    for place in ("job-1!", "job-1-other", "job-1.d", "job-10", "job-12"):
        plain.put_object(Bucket=BUCKET, Key=f"narrow/{place}/secret.txt", Body=b"not yours")
    keys = [f"{NARROW_PLACE}/{name}" for name in ("a b", "m/n", "z+")]
    for name in keys:
        plain.put_object(Bucket=BUCKET, Key=name, Body=b"own")
    return keys


@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2"])
@pytest.mark.parametrize("delimiter", ["", "/"])
def test_a_job_that_lists_its_folder_without_slash_sees_its_own_keys_page_by_page(
    service: Service, neighbours: list[str], operation: str, delimiter: str
) -> None:
    job = service.client(credentials=NARROW)
    config = {"PageSize": 1}
    pages = list(
        itertools.islice(
            job.get_paginator(operation).paginate(
                Bucket=BUCKET, Prefix=NARROW_PLACE, Delimiter=delimiter, PaginationConfig=config
            ),
            20,
        )
    )
    assert "secret" not in repr(pages)
    assert "other" not in repr(pages)
    found = [item["Key"] for page in pages for item in page.get("Contents", [])]
    folders = [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", [])]
    if delimiter:
        assert (found, folders) == ([], [f"{NARROW_PLACE}/"])
    else:
        assert found == neighbours


def test_markers_that_a_job_may_not_read_are_refused(service: Service, neighbours: list[str]) -> None:
    job = service.client(credentials=NARROW)
    asked = {"Bucket": BUCKET, "Prefix": NARROW_PLACE}
    assert job.list_objects_v2(**asked, StartAfter=neighbours[0])["StartAfter"] == neighbours[0]
    for operation, marker in (
        (job.list_objects, {"Marker": "narrow/job-1-"}),
        (job.list_objects_v2, {"StartAfter": "narrow/job-10/a"}),
        (job.list_objects_v2, {"ContinuationToken": "narrow/job-10/a"}),
    ):
        with pytest.raises(ClientError) as error:
            operation(**asked, **marker)
        assert refusal(error) == ("AccessDenied", 403)
    elsewhere = job.list_objects_v2(**{**asked, "Prefix": "narrow/job-1/m"}, MaxKeys=1)
    assert elsewhere["KeyCount"] == 1


def test_too_long_key_is_refused(plain: Any) -> None:
    plain.put_object(Bucket=BUCKET, Key="k/" * 511 + "kk", Body=b"1024 bytes")
    with pytest.raises(ClientError) as error:
        plain.put_object(Bucket=BUCKET, Key="k/" * 511 + "kkk", Body=b"1025 bytes")
    assert refusal(error) == ("KeyTooLongError", 400)


def test_key_that_is_not_utf8_is_refused(service: Service) -> None:
    answer = send(service, "PUT", f"/{BUCKET}/%FF%FE", body=b"x")
    assert (answer.status, answer.code) == (400, "InvalidURI")


def test_folder_marker_works_when_empty_and_is_refused_with_content(plain: Any, key: str) -> None:
    plain.put_object(Bucket=BUCKET, Key=f"{key}/d/", Body=b"")
    assert keys_under(plain, key) == [f"{key}/d/"]
    assert read(plain, f"{key}/d/") == b""
    with pytest.raises(ClientError) as error:
        plain.copy_object(Bucket=BUCKET, Key=f"{key}/copy", CopySource={"Bucket": BUCKET, "Key": f"{key}/d/"})
    assert refusal(error) == ("NoSuchKey", 404)
    with pytest.raises(ClientError) as error:
        plain.put_object(Bucket=BUCKET, Key=f"{key}/e/", Body=b"lost")
    assert refusal(error) == ("InvalidArgument", 400)
    with pytest.raises(ClientError) as error:
        plain.create_multipart_upload(Bucket=BUCKET, Key=f"{key}/e/")
    assert refusal(error) == ("InvalidArgument", 400)


def test_folder_markers_within_each_other_are_kept(plain: Any, key: str) -> None:
    """`d//` and `d/` are two keys, and `/` is the marker of no bucket."""
    for _ in range(2):
        plain.put_object(Bucket=BUCKET, Key=f"{key}/d/", Body=b"")
        plain.put_object(Bucket=BUCKET, Key=f"{key}/d//", Body=b"")
        plain.put_object(Bucket=BUCKET, Key="/", Body=b"")
    assert keys_under(plain, f"{key}/") == [f"{key}/d/", f"{key}/d//"]
    assert keys_under(plain, "/") == ["/"]
    plain.delete_object(Bucket=BUCKET, Key="/")


@pytest.mark.parametrize("content", [b"content", b""])
@pytest.mark.parametrize("is_child_first", [True, False])
def test_folder_marker_beside_an_object_of_its_name_is_refused(
    plain: Any, key: str, is_child_first: bool, content: bytes
) -> None:
    """The embedded store keeps `d` and `d/` in one entry, so that a marker `d/` would remove the content of `d`."""
    contents = {f"{key}/d": content, f"{key}/d/x": b"child"}
    for name in sorted(contents, reverse=is_child_first):
        plain.put_object(Bucket=BUCKET, Key=name, Body=contents[name])
    with pytest.raises(ClientError) as error:
        plain.put_object(Bucket=BUCKET, Key=f"{key}/d/", Body=b"")
    assert refusal(error) == ("ExistingObjectIsFile", 409)
    assert {name: read(plain, name) for name in keys_under(plain, key)} == contents
    if not content:
        return  # an empty object is also read as the marker of its name
    with pytest.raises(ClientError) as error:
        plain.head_object(Bucket=BUCKET, Key=f"{key}/d/")
    assert refusal(error) == ("404", 404)
    source = {"CopySource": {"Bucket": BUCKET, "Key": f"{key}/d/"}}
    for read_marker in (
        lambda: plain.get_object(Bucket=BUCKET, Key=f"{key}/d/"),
        lambda: plain.copy_object(Bucket=BUCKET, Key=f"{key}/copy", **source),
    ):
        with pytest.raises(ClientError) as error:
            read_marker()
        assert refusal(error) == ("NoSuchKey", 404)


def test_folder_without_a_stored_marker_does_not_exist(plain: Any, key: str) -> None:
    plain.put_object(Bucket=BUCKET, Key=f"{key}/d/x", Body=b"1")
    with pytest.raises(ClientError) as error:
        plain.head_object(Bucket=BUCKET, Key=f"{key}/d/")
    assert refusal(error) == ("404", 404)


@pytest.mark.parametrize("bucket", ["ab", "UPPER", "a_b", "a..b", "-ab", "192.168.1.1", "b" * 64, "%2e%2e"])
def test_bad_bucket_names_are_refused(service: Service, bucket: str) -> None:
    for path in (f"/{bucket}", f"/{bucket}/key"):
        answer = send(service, "PUT", path)
        assert (answer.status, answer.code) == (400, "InvalidBucketName")


def test_delete_document_with_entities_is_refused(service: Service) -> None:
    document = b'<!DOCTYPE d [<!ENTITY a "a//b">]><Delete><Object><Key>&a;</Key></Object></Delete>'
    answer = send(service, "POST", f"/{BUCKET}?delete=", body=document)
    assert (answer.status, answer.code) == (400, "MalformedXML")


def test_body_without_a_length_is_refused(service: Service, key: str) -> None:
    answer = send(
        service, "PUT", f"/{BUCKET}/{key}", body=b"x" * 3000, payload_hash=sigv4.UNSIGNED_PAYLOAD, chunked=True
    )
    assert (answer.status, answer.code) == (411, "MissingContentLength")


def test_length_with_thousands_of_digits_is_refused(service: Service, key: str) -> None:
    answer = send(
        service,
        "PUT",
        f"/{BUCKET}/{key}",
        body=b"x",
        payload_hash=sigv4.STREAMING_PAYLOAD,
        headers={"x-amz-decoded-content-length": "9" * 5000},
    )
    assert (answer.status, answer.code) == (411, "MissingContentLength")


def test_every_answer_has_a_request_id(service: Service, key: str) -> None:
    for answer in (send(service, "GET", "/"), send(service, "GET", f"/{BUCKET}/{key}")):
        assert answer.headers["x-amzn-requestid"]
        assert answer.headers["x-amz-request-id"]


def test_refusal_is_sent_before_the_body_of_a_client_that_expects_100_continue(service: Service, key: str) -> None:
    headers = {"host": urlsplit(service.http_url).netloc, "expect": "100-continue", "content-length": str(MIB)}
    with contextlib.closing(http.client.HTTPConnection(headers["host"], timeout=10)) as connection:
        connection.putrequest("PUT", f"/{BUCKET}/{key}", skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()  # no byte of the body is sent
        with connection.getresponse() as response:
            assert response.status == 403
            assert b"AccessDenied" in response.read()


def test_two_requests_on_one_connection_after_a_refusal_with_body(service: Service, key: str) -> None:
    url = urlsplit(service.http_url)
    connection = http.client.HTTPConnection(url.netloc, timeout=10)
    for _ in range(2):
        connection.request("PUT", f"/{BUCKET}/{key}", body=b"GET / HTTP/1.1\r\n\r\n" * 10)
        response = connection.getresponse()
        assert response.status == 403
        response.read()
    connection.close()
