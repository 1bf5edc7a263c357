"""Facts about objects that S3 returns, by a real client and a real SeaweedFS: encryption, checksums, regions."""

from __future__ import annotations

import base64
import hashlib
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from botocore.exceptions import ClientError
from objects_service import BUCKET, REGION, Service, ServiceThread, read, refusal, send

KMS = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:aws:kms:us-west-2:1:key/mine"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    thread = ServiceThread(tmp_path_factory.mktemp("home"))
    yield thread.service
    thread.close()


@pytest.fixture
def s3(service: Service) -> Iterator[Any]:
    client = service.client()
    yield client
    client.close()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"{hashlib.sha1(request.node.name.encode()).hexdigest()[:12]}/object"


def told(answer: dict[str, Any]) -> dict[str, str]:
    return {name: answer[name] for name in ("ServerSideEncryption", "SSEKMSKeyId") if name in answer}


def looked_at(s3: Any, key: str) -> dict[str, str]:
    answer = s3.get_object(Bucket=BUCKET, Key=key)
    answer["Body"].close()
    head = s3.head_object(Bucket=BUCKET, Key=key)
    assert told(answer) == told(head)
    assert head["Metadata"] == {"step": "7"}
    return told(head)


@pytest.mark.parametrize("asked", [{}, {"ServerSideEncryption": "AES256"}, {"ServerSideEncryption": "aws:kms"}, KMS])
def test_requested_encryption_is_returned(s3: Any, key: str, asked: dict[str, str]) -> None:
    expected = asked or {"ServerSideEncryption": "AES256"}
    answer = s3.put_object(Bucket=BUCKET, Key=key, Body=b"code", Metadata={"step": "7"}, **asked)
    assert told(answer) == expected
    assert looked_at(s3, key) == expected
    assert read(s3, key) == b"code"


@pytest.mark.parametrize(
    ("stored", "asked", "is_in_sandbox"),
    [
        ("application/pdf", [], False),
        ("text/html", ["Application/PDF"], False),
        ("text/html", [], True),
        ("application/pdf;x=y,text/html", [], True),
        ("application/pdf; charset=utf-8", [], True),
        ("application/pdf", ["application/pdf;x=y,text/html"], True),
        ("application/pdf", ["application/pdf,text/html"], True),
        ("application/pdf", ["application/pdf", "text/html"], None),
        ("application/pdf", ["text/html", "application/pdf"], None),
    ],
)
def test_only_what_every_browser_takes_for_a_pdf_leaves_the_sandbox(
    service: Service, s3: Any, key: str, stored: str, asked: list[str], is_in_sandbox: bool | None
) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"<script>", ContentType=stored)
    query = "&".join(f"response-content-type={quote(one, safe='')}" for one in asked)
    headers = send(service, "GET", f"/{BUCKET}/{key}?{query}").headers
    if is_in_sandbox is None:  # the store chooses one of the types
        is_in_sandbox = headers["content-type"] != "application/pdf"
    assert headers.get("content-security-policy", "").startswith("sandbox") == is_in_sandbox


def test_encryption_of_a_multipart_upload_is_returned(s3: Any, key: str) -> None:
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key=key, Metadata={"step": "7"}, **KMS)
    assert told(upload) == KMS
    part = s3.upload_part(Bucket=BUCKET, Key=key, UploadId=upload["UploadId"], PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    done = s3.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload["UploadId"], MultipartUpload=parts)
    assert told(done) == KMS
    assert looked_at(s3, key) == KMS


def test_a_copy_has_the_encryption_that_its_request_names(s3: Any, key: str) -> None:
    source = {"Bucket": BUCKET, "Key": key}
    s3.put_object(**source, Body=b"x", Metadata={"step": "7"}, ContentType="text/css", CacheControl="no-store", **KMS)
    s3.copy_object(Bucket=BUCKET, Key=f"{key}-plain", CopySource=source)
    assert looked_at(s3, f"{key}-plain") == {"ServerSideEncryption": "AES256"}
    head = s3.head_object(Bucket=BUCKET, Key=f"{key}-plain")
    assert (head["ContentType"], head["CacheControl"]) == ("text/css", "no-store")
    answer = s3.copy_object(Bucket=BUCKET, Key=f"{key}-kms", CopySource={**source, "Key": f"{key}-plain"}, **KMS)
    assert told(answer) == KMS
    assert looked_at(s3, f"{key}-kms") == KMS
    s3.copy_object(Bucket=BUCKET, Key=key, CopySource=source, ServerSideEncryption="AES256")
    assert looked_at(s3, key) == {"ServerSideEncryption": "AES256"}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"ServerSideEncryption": "ROT13"}, "InvalidArgument"),
        ({"ServerSideEncryption": "AES256", "SSEKMSKeyId": "k"}, "InvalidArgument"),
        ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "a b"}, "InvalidArgument"),
        ({"SSEKMSKeyId": "k"}, "InvalidArgument"),
        ({"Metadata": {"clary-encryption": "aws:kms  0"}}, "InvalidArgument"),
    ],
)
def test_unknown_encryption_is_refused(s3: Any, key: str, asked: dict[str, Any], code: str) -> None:
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"x", **asked)
    assert refusal(error) == (code, 400)


def test_a_bucket_has_the_default_encryption_of_aws(s3: Any) -> None:
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": False}
    s3.put_bucket_encryption(Bucket=BUCKET, ServerSideEncryptionConfiguration={"Rules": [rule]})
    s3.delete_bucket_encryption(Bucket=BUCKET)
    found = s3.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert found == [rule]
    with pytest.raises(ClientError) as error:
        s3.get_bucket_encryption(Bucket="no-such-bucket")
    assert refusal(error) == ("NoSuchBucket", 404)
    rule["ApplyServerSideEncryptionByDefault"] = {"SSEAlgorithm": "aws:kms"}
    with pytest.raises(ClientError) as error:
        s3.put_bucket_encryption(Bucket=BUCKET, ServerSideEncryptionConfiguration={"Rules": [rule]})
    assert refusal(error) == ("NotImplemented", 501)


def test_boto3_is_redirected_from_another_region_to_the_services(service: Service, s3: Any, key: str) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    other = service.client(region="eu-central-1")
    with pytest.raises(ClientError) as error:
        other.list_buckets()
    assert refusal(error) == ("AuthorizationHeaderMalformed", 400)
    assert error.value.response["Error"]["Region"] == REGION
    # botocore reads the region from the error, or from the header of a HEAD's error, and signs again.
    assert read(other, key) == b"x"
    other.close()
    other = service.client(region="eu-central-1")
    assert other.head_object(Bucket=BUCKET, Key=key)["ContentLength"] == 1
    other.close()
    assert s3.head_bucket(Bucket=BUCKET)["BucketRegion"] == REGION


def test_buckets_are_only_in_the_services_region(service: Service, s3: Any) -> None:
    assert s3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] == REGION
    unknowing = service.client(region="us-east-1")  # the first request of minio's client
    assert unknowing.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] == REGION
    unknowing.close()
    s3.create_bucket(Bucket="in-ours", CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.create_bucket(Bucket="in-none")
    with pytest.raises(ClientError) as error:
        s3.create_bucket(Bucket="in-another", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    assert refusal(error) == ("IllegalLocationConstraintException", 400)
    assert {"in-ours", "in-none"} <= {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}
    with pytest.raises(ClientError) as error:
        s3.head_bucket(Bucket="in-another")
    assert refusal(error)[1] == 404


def test_object_attributes_return_checksums_and_parts(s3: Any, key: str) -> None:
    wanted = ["Checksum", "ObjectParts", "ObjectSize", "ETag"]
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"x", ChecksumAlgorithm="SHA256")
    found = s3.get_object_attributes(Bucket=BUCKET, Key=key, ObjectAttributes=wanted)
    assert found["Checksum"] == {
        "ChecksumSHA256": base64.b64encode(hashlib.sha256(b"x").digest()).decode(),
        "ChecksumType": "FULL_OBJECT",
    }
    assert (found["ObjectSize"], "ObjectParts" in found) == (1, False)
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key=key, ChecksumAlgorithm="CRC32")["UploadId"]
    part = s3.upload_part(
        Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"part", ChecksumAlgorithm="CRC32"
    )
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumCRC32": part["ChecksumCRC32"]}]}
    done = s3.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload=parts)
    assert done["Location"] == f"{s3.meta.endpoint_url}/{BUCKET}/{key}"
    found = s3.get_object_attributes(Bucket=BUCKET, Key=key, ObjectAttributes=wanted)
    assert found["Checksum"] == {"ChecksumCRC32": done["ChecksumCRC32"], "ChecksumType": "COMPOSITE"}
    assert found["ObjectParts"]["TotalPartsCount"] == 1


def test_a_page_that_was_stored_as_an_object_has_an_origin_of_its_own(service: Service, s3: Any, key: str) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"<script>1</script>", ContentType="text/html")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key})
    with urllib.request.urlopen(url) as answer:
        assert answer.headers["Content-Type"] == "text/html"
        assert answer.headers.get_all("Content-Security-Policy") == [
            "sandbox allow-scripts allow-downloads allow-popups allow-modals"
        ]
        assert answer.headers.get_all("X-Content-Type-Options") == ["nosniff"]
    for path in (f"/{BUCKET}?list-type=2", f"/{BUCKET}/never", f"/{BUCKET}/{key}?acl"):
        assert (
            send(service, "GET", path).headers["content-security-policy"]
            == "sandbox allow-scripts allow-downloads allow-popups allow-modals"
        )
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"%PDF-1.7", ContentType="application/pdf")
    assert "content-security-policy" not in send(service, "GET", f"/{BUCKET}/{key}").headers
