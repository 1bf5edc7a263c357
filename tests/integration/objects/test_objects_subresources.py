"""Operations of S3 on subresources, each sent to a real SeaweedFS, which confuses many with other operations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest
from objects_service import BUCKET, Service, ServiceThread, read, send

MODEL = botocore.session.get_session().get_service_model("s3")
LEFT = b"precious"
EMPTY, NONE = "without-objects", "never-made"


def of_subresources() -> Iterator[tuple[str, str, str]]:
    """Yield operation, method and target of all operations that name a subresource."""
    for name in MODEL.operation_names:
        http = MODEL.operation_model(name).http
        path, _, query = http["requestUri"].partition("?")
        if query and http["method"] != "HEAD" and "{Bucket}" in path:
            yield name, http["method"], f"{path.replace('{Key+}', 'kept')}?{query}"


OPERATIONS = sorted(of_subresources())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    thread = ServiceThread(tmp_path_factory.mktemp("home"))
    yield thread.service
    thread.close()


@pytest.fixture(scope="module")
def s3(service: Service) -> Iterator[Any]:
    client = service.client()
    client.create_bucket(Bucket=EMPTY, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield client
    client.close()


def names(s3: Any) -> set[str]:
    return {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}


@pytest.mark.long(10)
@pytest.mark.parametrize(("name", "method", "target"), OPERATIONS, ids=[name for name, *_ in OPERATIONS])
def test_an_operation_on_a_subresource_leaves_object_and_bucket_as_they_are(
    service: Service, s3: Any, name: str, method: str, target: str
) -> None:
    s3.put_object(Bucket=BUCKET, Key="kept", Body=LEFT)
    body = b"<x/>" if method in ("PUT", "POST") else b""
    before = names(s3)
    answers = [send(service, method, target.replace("{Bucket}", bucket), body=body) for bucket in (BUCKET, EMPTY, NONE)]
    assert read(s3, "kept") == LEFT
    assert names(s3) == before, "a bucket was made or removed"
    assert LEFT not in answers[0].body, "the object was told for its subresource"


def test_unimplemented_subresources_are_refused_as_not_implemented(service: Service, s3: Any) -> None:
    answer = send(service, "DELETE", f"/{EMPTY}?website")
    assert (answer.status, answer.code) == (501, "NotImplemented")
    assert b"DELETE of a bucket with ?website is not implemented by the embedded object store" in answer.body
    assert EMPTY in names(s3)


def test_every_bucket_blocks_public_access_whatever_is_put(s3: Any) -> None:
    blocks = ["BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"]
    s3.put_public_access_block(Bucket=EMPTY, PublicAccessBlockConfiguration=dict.fromkeys(blocks, True))
    told = s3.get_public_access_block(Bucket=EMPTY)["PublicAccessBlockConfiguration"]
    assert told == dict.fromkeys(blocks, True)
    s3.delete_public_access_block(Bucket=EMPTY)
    assert EMPTY in names(s3)
    with pytest.raises(s3.exceptions.ClientError) as error:
        s3.get_public_access_block(Bucket=NONE)
    assert error.value.response["Error"]["Code"] == "NoSuchBucket"


def test_a_policy_for_requests_without_tls_does_not_lock_its_bucket(s3: Any) -> None:
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [f"arn:aws:s3:::{EMPTY}", f"arn:aws:s3:::{EMPTY}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    with pytest.raises(s3.exceptions.ClientError) as error:
        s3.put_bucket_policy(Bucket=EMPTY, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    assert error.value.response["Error"]["Code"] == "NotImplemented"
    assert s3.list_objects_v2(Bucket=EMPTY)["KeyCount"] == 0
