"""The S3 front with a real SeaweedFS behind it: requests of real clients, over http and https."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError
from objects_service import (
    ACCOUNT,
    BUCKET,
    MIB,
    REGION,
    USER,
    Service,
    ServiceThread,
    crc32,
    crc32c,
    crc64nvme,
    keys_under,
    put_signed_chunks,
    read,
    refusal,
    send,
    send_raw,
    trailer_headers,
    unsigned_chunks,
)

from clary.contract import sigv4


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


def test_object_is_returned_with_metadata_and_type(s3: Any, key: str) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"hello", Metadata={"step": "7"}, ContentType="text/plain")
    answer = s3.head_object(Bucket=BUCKET, Key=key)
    assert (answer["ContentLength"], answer["ContentType"], answer["Metadata"]) == (5, "text/plain", {"step": "7"})
    assert "ContentEncoding" not in answer
    assert read(s3, key) == b"hello"


@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2", "list_object_versions"])
def test_pages_of_a_listing_go_on_behind_keys_of_any_characters(plain: Any, key: str, operation: str) -> None:
    folder = f"{key}+&"
    names = sorted(f"{folder}/{name}" for name in ("a b", "m%41", "p+", "q<&>", "r'\"", "\u00fc", "z"))
    for name in names:
        plain.put_object(Bucket=BUCKET, Key=name, Body=b"x")
    pages = plain.get_paginator(operation).paginate(Bucket=BUCKET, Prefix=folder, PaginationConfig={"PageSize": 1})
    found = []
    for page in pages:
        assert page["Prefix"] == folder
        found += [item["Key"] for item in page.get("Contents", page.get("Versions", []))]
        assert len(found) <= len(names), found
    assert found == names


def test_empty_object_is_returned(s3: Any, key: str) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"")
    assert read(s3, key) == b""


def test_gzip_object_is_stored_as_it_was_sent(s3: Any, key: str) -> None:
    content = zlib.compress(b"x" * 1000)
    s3.put_object(Bucket=BUCKET, Key=key, Body=content, ContentEncoding="gzip")
    assert read(s3, key) == content


@pytest.mark.parametrize("size", [1, 64 * 1024, 64 * 1024 + 1, 3 * MIB + 17])
def test_streamed_body_of_any_size_survives_the_round_trip(s3: Any, key: str, size: int) -> None:
    content = os.urandom(size)
    s3.upload_fileobj(io.BytesIO(content), BUCKET, key)
    assert read(s3, key) == content


def test_multipart_upload_with_parallel_parts_survives_the_round_trip(s3: Any, key: str) -> None:
    content = os.urandom(20 * MIB + 5)
    config = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB, max_concurrency=4)
    s3.upload_fileobj(io.BytesIO(content), BUCKET, key, Config=config)
    assert s3.head_object(Bucket=BUCKET, Key=key)["ETag"].endswith('-3"')
    received = io.BytesIO()
    s3.download_fileobj(BUCKET, key, received, Config=config)
    assert received.getvalue() == content


def test_parts_can_be_listed_and_an_upload_aborted(plain: Any, key: str) -> None:
    upload = plain.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
    plain.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=2, Body=b"part")
    parts = plain.list_parts(Bucket=BUCKET, Key=key, UploadId=upload)["Parts"]
    assert [part["PartNumber"] for part in parts] == [2]
    plain.abort_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload)
    assert keys_under(plain, key) == []


def test_customer_key_encryption_is_refused(service: Service, key: str) -> None:
    headers = {"x-amz-server-side-encryption-customer-algorithm": "AES256"}
    answer = send(service, "PUT", f"/{BUCKET}/{key}", body=b"x", headers=headers)
    assert (answer.status, answer.code) == (501, "NotImplemented")


def test_expected_bucket_owner_must_be_the_account(plain: Any, key: str) -> None:
    plain.put_object(Bucket=BUCKET, Key=key, Body=b"x", ExpectedBucketOwner=ACCOUNT)
    plain.head_bucket(Bucket=BUCKET, ExpectedBucketOwner=ACCOUNT)
    with pytest.raises(ClientError) as error:
        plain.put_object(Bucket=BUCKET, Key=key, Body=b"y", ExpectedBucketOwner="999999999999")
    assert refusal(error) == ("AccessDenied", 403)
    assert read(plain, key) == b"x"


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])  # boto3 needs a C library for the other algorithms
def test_checksum_is_kept_and_verified_on_read(s3: Any, key: str, algorithm: str) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"checked" * 50, ChecksumAlgorithm=algorithm)
    answer = s3.get_object(Bucket=BUCKET, Key=key, ChecksumMode="ENABLED")
    assert answer[f"Checksum{algorithm}"]
    with answer["Body"] as body:
        assert body.read() == b"checked" * 50


@pytest.mark.parametrize("checksum", [crc32c, crc64nvme])
@pytest.mark.parametrize("secure", [False, True])
def test_trailing_checksum_is_returned_and_a_wrong_one_refused(
    service: Service, key: str, checksum: Callable[[bytes], str], *, secure: bool
) -> None:
    data = os.urandom(20_000)
    name = f"x-amz-checksum-{checksum.__name__}"
    arguments: dict[str, Any] = {
        "payload_hash": sigv4.STREAMING_UNSIGNED_TRAILER,
        "headers": trailer_headers(data, name=name),
        "secure": secure,
        "chunked": secure,
    }
    path = f"/{BUCKET}/{key}"
    good = unsigned_chunks(data, name=name, value=checksum(data))
    assert send(service, "PUT", path, body=good, **arguments).status == 200
    answer = send(service, "GET", path, headers={"x-amz-checksum-mode": "ENABLED"}, secure=secure)
    assert answer.body == data
    assert (answer.headers[name], answer.headers["x-amz-checksum-type"]) == (checksum(data), "FULL_OBJECT")
    bad = unsigned_chunks(data[:-1] + b"!", name=name, value=checksum(data))
    assert send(service, "PUT", path, body=bad, **arguments).status == 400
    assert send(service, "GET", path).body == data


@pytest.mark.parametrize("checksum", [crc32c, crc64nvme])
def test_checksum_in_a_header_is_returned_and_a_wrong_one_refused(
    service: Service, key: str, checksum: Callable[[bytes], str]
) -> None:
    name, path = f"x-amz-checksum-{checksum.__name__}", f"/{BUCKET}/{key}"
    answer = send(service, "PUT", path, body=b"content", headers={name: checksum(b"content")})
    assert (answer.status, answer.headers[name]) == (200, checksum(b"content"))
    answer = send(service, "PUT", path, body=b"other", headers={name: checksum(b"content")})
    assert (answer.status, answer.code) == (400, "BadDigest")
    head = send(service, "HEAD", path, headers={"x-amz-checksum-mode": "ENABLED"})
    assert (head.headers[name], head.headers["content-length"]) == (checksum(b"content"), "7")


def test_a_checksum_in_a_presigned_url_is_ignored_as_by_s3(service: Service, key: str) -> None:
    """The AWS SDK for JavaScript presigns uploads with the checksum of an empty body."""
    checksum = "x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-meta-step=7&x-amz-sdk-checksum-algorithm=CRC32&x-id=PutObject"
    url = f"{service.http_url}/{BUCKET}/{key}?{checksum}"
    signed = sigv4.presign_url("PUT", url, credentials=USER, region=REGION, now=datetime.now(UTC), expires_s=60)
    host = {"Host": urlsplit(service.http_url).netloc}
    assert send_raw(service, "PUT", signed.removeprefix(service.http_url), host, b"content").status == 200
    answer = send(service, "GET", f"/{BUCKET}/{key}")
    assert (answer.body, answer.headers["x-amz-meta-step"]) == (b"content", "7")


@pytest.mark.parametrize("name", ["object", "a//b"])
@pytest.mark.parametrize("content", [b"", b"abc"])
def test_a_range_behind_the_end_is_refused_with_the_size_of_the_object(
    service: Service, key: str, name: str, content: bytes
) -> None:
    """The AWS Common Runtime asks for a range first, and takes size 0 in the error for an empty object."""
    path = f"/{BUCKET}/{key}/{name}"
    assert send(service, "PUT", path, body=content).status == 200
    answer = send(service, "GET", path, headers={"range": "bytes=3-9"})
    assert (answer.status, answer.code, answer.headers["content-type"]) == (416, "InvalidRange", "application/xml")
    told = f"<RangeRequested>bytes=3-9</RangeRequested><ActualObjectSize>{len(content)}</ActualObjectSize></Error>"
    assert answer.body.endswith(told.encode())


@pytest.mark.parametrize("is_in_parts", [False, True])
def test_the_first_part_of_an_empty_object_is_empty(plain: Any, key: str, *, is_in_parts: bool) -> None:
    """The AWS Common Runtime asks for it after an error has said that the object is empty."""
    name = {"Bucket": BUCKET, "Key": key}
    if is_in_parts:
        upload = {**name, "UploadId": plain.create_multipart_upload(**name)["UploadId"]}
        etag = plain.upload_part(**upload, PartNumber=1, Body=b"")["ETag"]
        plain.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"ETag": etag, "PartNumber": 1}]})
    else:
        plain.put_object(**name, Body=b"")
    assert read(plain, key, PartNumber=1) == b""
    assert plain.head_object(**name, PartNumber=1)["ContentLength"] == 0
    with pytest.raises(ClientError) as error:
        plain.get_object(**name, PartNumber=2)
    assert refusal(error) == ("InvalidPartNumber", 416)


def test_corrupted_crc32_trailer_stores_nothing(service: Service, key: str) -> None:
    name = "x-amz-checksum-crc32"
    body = unsigned_chunks(b"other content", name=name, value=crc32(b"content"))
    answer = send(
        service,
        "PUT",
        f"/{BUCKET}/{key}",
        body=body,
        payload_hash=sigv4.STREAMING_UNSIGNED_TRAILER,
        headers=trailer_headers(b"other content", name=name),
    )
    assert answer.status == 400
    assert send(service, "HEAD", f"/{BUCKET}/{key}").status == 404


def test_corrupted_checksum_header_stores_nothing(plain: Any, key: str) -> None:
    with pytest.raises(ClientError) as error:
        plain.put_object(Bucket=BUCKET, Key=key, Body=b"content", ChecksumCRC32="AAAAAA==")
    assert refusal(error)[1] == 400
    assert keys_under(plain, key) == []


@pytest.mark.parametrize("size", [0, 10, 65536, 200_000])
def test_signed_chunks_are_decoded(service: Service, plain: Any, key: str, size: int) -> None:
    data = os.urandom(size)
    assert put_signed_chunks(service, f"/{BUCKET}/{key}", data).status == 200
    assert read(plain, key) == data
    assert "ContentEncoding" not in plain.head_object(Bucket=BUCKET, Key=key)


def test_signed_chunks_with_a_trailer_keep_their_checksum(service: Service, plain: Any, key: str) -> None:
    data = os.urandom(150_000)
    assert put_signed_chunks(service, f"/{BUCKET}/{key}", data, trailer=crc32(data)).status == 200
    answer = plain.get_object(Bucket=BUCKET, Key=key, ChecksumMode="ENABLED")
    with answer["Body"] as body:
        assert body.read() == data
    assert answer["ChecksumCRC32"] == crc32(data)
    assert put_signed_chunks(service, f"/{BUCKET}/{key}", data, trailer=crc32(b"else")).status == 400
    assert read(plain, key) == data


@pytest.mark.parametrize(
    ("name", "tamper"),
    [
        ("content of the first chunk", lambda body: body.replace(b"\r\naaaa", b"\r\nbaaa", 1)),
        ("signature of the last chunk", lambda body: body[:-8] + b"0000" + body[-4:]),
        ("last chunk missing", lambda body: body[: body.rindex(b"0;chunk-signature")]),
        ("framing broken", lambda body: b"zz" + body),
    ],
)
def test_tampered_signed_chunks_store_nothing(service: Service, plain: Any, key: str, name: str, tamper: Any) -> None:
    plain.put_object(Bucket=BUCKET, Key=key, Body=b"before")
    answer = put_signed_chunks(service, f"/{BUCKET}/{key}", b"a" * 100_000, tamper=tamper)
    assert answer.status in (400, 403), name
    assert answer.code in ("SignatureDoesNotMatch", "IncompleteBody", "InvalidRequest")
    assert read(plain, key) == b"before"


def test_signed_chunks_of_another_length_are_refused(service: Service, key: str) -> None:
    answer = put_signed_chunks(service, f"/{BUCKET}/{key}", b"a" * 1000, announced_length=999)
    assert (answer.status, answer.code) == (400, "IncompleteBody")
    assert send(service, "HEAD", f"/{BUCKET}/{key}").status == 404


def test_listing_v1_and_v2_with_pages_delimiter_and_encoding(s3: Any) -> None:
    prefix = "listing/"
    names = [f"{prefix}{name}" for name in ("a b", "a+b", "d/x", "d/y", "e%2Ff", "ü/ñ", "z")]
    for name in names:
        s3.put_object(Bucket=BUCKET, Key=name, Body=b"1")
    expected = sorted(names, key=str.encode)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix, PaginationConfig={"PageSize": 2})
    assert [item["Key"] for page in pages for item in page["Contents"]] == expected
    pages = s3.get_paginator("list_objects").paginate(Bucket=BUCKET, Prefix=prefix, PaginationConfig={"PageSize": 3})
    assert [item["Key"] for page in pages for item in page["Contents"]] == expected
    answer = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix, Delimiter="/", EncodingType="url")
    assert [item["Prefix"] for item in answer["CommonPrefixes"]] == [f"{prefix}d/", f"{prefix}%C3%BC/"]
    after = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix, StartAfter=f"{prefix}e%2Ff")
    assert [item["Key"] for item in after["Contents"]] == [f"{prefix}z", f"{prefix}ü/ñ"]


def test_conditional_writes_and_reads_are_honoured(plain: Any, key: str) -> None:
    etag = plain.put_object(Bucket=BUCKET, Key=key, Body=b"1", IfNoneMatch="*")["ETag"]
    for condition in ({"IfNoneMatch": "*"}, {"IfMatch": '"00000000000000000000000000000000"'}):
        with pytest.raises(ClientError) as error:
            plain.put_object(Bucket=BUCKET, Key=key, Body=b"2", **condition)
        assert refusal(error) == ("PreconditionFailed", 412)
    assert read(plain, key, IfMatch=etag) == b"1"
    with pytest.raises(ClientError) as error:
        plain.get_object(Bucket=BUCKET, Key=key, IfNoneMatch=etag)
    assert refusal(error)[1] == 304


def test_ranges_of_small_and_large_objects(s3: Any, key: str) -> None:
    content = os.urandom(9 * MIB)
    s3.put_object(Bucket=BUCKET, Key=key, Body=content)
    answer = s3.get_object(Bucket=BUCKET, Key=key, Range="bytes=4194300-8388700")
    with answer["Body"] as body:
        assert body.read() == content[4194300:8388701]
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert answer["ContentRange"] == f"bytes 4194300-8388700/{len(content)}"
    assert read(s3, key, Range="bytes=-5") == content[-5:]
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={len(content)}-")
    assert refusal(error) == ("InvalidRange", 416)


def test_copy_keeps_the_content_of_a_key_with_percent_and_unicode(plain: Any, key: str) -> None:
    source = f"{key}/%2F ü+"
    plain.put_object(Bucket=BUCKET, Key=source, Body=b"source")
    plain.copy_object(Bucket=BUCKET, Key=f"{key}/copy", CopySource={"Bucket": BUCKET, "Key": source})
    assert read(plain, f"{key}/copy") == b"source"


def test_delete_objects_deletes_the_named_objects(s3: Any, key: str) -> None:
    for name in ("a", "b & <c>", "ü"):
        s3.put_object(Bucket=BUCKET, Key=f"{key}/{name}", Body=b"1")
    answer = s3.delete_objects(
        Bucket=BUCKET, Delete={"Objects": [{"Key": f"{key}/{name}"} for name in ("b & <c>", "ü")]}
    )
    assert len(answer["Deleted"]) == 2
    assert keys_under(s3, key) == [f"{key}/a"]


def test_many_deletions_in_one_request(plain: Any, key: str) -> None:
    names = [f"{key}/{'n' * 100}{index}" for index in range(1000)]
    answer = plain.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": name} for name in names]})
    assert len(answer["Deleted"]) == 1000


def test_tags_of_objects(plain: Any, key: str) -> None:
    plain.put_object(Bucket=BUCKET, Key=key, Body=b"1", Tagging="team=vision")
    plain.put_object_tagging(Bucket=BUCKET, Key=key, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    assert plain.get_object_tagging(Bucket=BUCKET, Key=key)["TagSet"] == [{"Key": "a", "Value": "b"}]


def test_buckets_are_created_found_listed_and_removed(s3: Any) -> None:
    name = "made-here"
    with pytest.raises(ClientError) as error:
        s3.head_bucket(Bucket=name)
    assert refusal(error) == ("404", 404)
    with pytest.raises(ClientError) as error:
        s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    assert refusal(error) == ("IllegalLocationConstraintException", 400)
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.head_bucket(Bucket=name)
    assert name in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    with pytest.raises(ClientError) as error:
        s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    assert refusal(error) == ("BucketAlreadyOwnedByYou", 409)
    s3.put_object(Bucket=name, Key="k", Body=b"1")
    with pytest.raises(ClientError) as error:
        s3.delete_bucket(Bucket=name)
    assert refusal(error) == ("BucketNotEmpty", 409)
    s3.delete_object(Bucket=name, Key="k")
    s3.delete_bucket(Bucket=name)


def test_upload_to_a_missing_bucket_is_refused_and_creates_no_bucket(s3: Any) -> None:
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket="not-there", Key="k", Body=b"x" * 200_000)
    assert refusal(error) == ("NoSuchBucket", 404)
    assert "not-there" not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]


def test_bucket_named_like_the_internal_path_is_served_by_s3(plain: Any) -> None:
    plain.create_bucket(Bucket="clary")
    plain.put_object(Bucket="clary", Key="v1/health", Body=b"an object")
    with plain.get_object(Bucket="clary", Key="v1/health")["Body"] as body:
        assert body.read() == b"an object"
