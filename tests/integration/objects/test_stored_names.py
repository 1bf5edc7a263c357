"""Keys with empty parts and backslashes, which S3 has and SeaweedFS would take for other keys: every operation."""

from __future__ import annotations

import base64
import hashlib
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from objects_service import (
    BUCKET,
    MIB,
    NARROW,
    NARROW_PLACE,
    Service,
    ServiceThread,
    crc32,
    crc32c,
    crc64nvme,
    keys_under,
    read,
    refusal,
    send,
)

from clary.contract import sigv4
from clary.contract.object_store import ObjectStore

NAMES = ["a//b", "a//c", "a/b", "a///b", "/b", "//", "a\\b", "a/\\b", "\\", "d//c/", "e//\u00fc x+&<"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    thread = ServiceThread(tmp_path_factory.mktemp("home"))
    yield thread.service
    thread.close()


@pytest.fixture
def plain(service: Service) -> Iterator[Any]:
    client = service.client()
    yield client
    client.close()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return hashlib.sha1(request.node.name.encode()).hexdigest()[:12]


@pytest.fixture
def filled(plain: Any, key: str) -> list[str]:
    """The keys of one object for each of NAMES, sorted; each object holds its key, or nothing at a last slash."""
    keys = sorted((f"{key}/{name}" for name in NAMES), key=str.encode)
    for full in keys:
        plain.put_object(Bucket=BUCKET, Key=full, Body=b"" if full.endswith("/") else full.encode())
    return keys


def test_each_key_has_an_object_of_its_own(plain: Any, filled: list[str]) -> None:
    for full in filled:
        assert read(plain, full) == (b"" if full.endswith("/") else full.encode())
        assert plain.head_object(Bucket=BUCKET, Key=full)["ContentLength"] == (
            0 if full.endswith("/") else len(full.encode())
        )


@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2", "list_object_versions"])
@pytest.mark.parametrize("page_size", [1, 3, 1000])
def test_listings_name_the_keys_page_by_page(
    plain: Any, filled: list[str], key: str, operation: str, page_size: int
) -> None:
    listed = "Versions" if operation == "list_object_versions" else "Contents"
    pages = plain.get_paginator(operation).paginate(
        Bucket=BUCKET, Prefix=f"{key}/", PaginationConfig={"PageSize": page_size}
    )
    found = [entry["Key"] for page in pages for entry in page.get(listed, [])]
    assert sorted(found, key=str.encode) == filled


def test_prefixes_delimiters_and_markers_are_those_of_the_keys(plain: Any, filled: list[str], key: str) -> None:
    for prefix in (f"{key}//", f"{key}/a//", f"{key}/a\\", f"{key}/a/"):
        expected = [name for name in filled if name.startswith(prefix)]
        assert sorted(keys_under(plain, prefix), key=str.encode) == expected
        raw = plain.list_objects_v2(Bucket=BUCKET, Prefix=prefix, EncodingType="url")
        assert len(raw.get("Contents", [])) == len(expected)
    folded = plain.list_objects_v2(Bucket=BUCKET, Prefix=f"{key}/a/", Delimiter="/")
    assert [entry["Prefix"] for entry in folded["CommonPrefixes"]] == [f"{key}/a//"]
    assert {entry["Key"] for entry in folded["Contents"]} == {f"{key}/a/b", f"{key}/a/\\b"}
    assert folded["Prefix"] == f"{key}/a/"
    later = plain.list_objects_v2(Bucket=BUCKET, Prefix=f"{key}/a//", StartAfter=f"{key}/a//b")
    assert [entry["Key"] for entry in later["Contents"]] == [f"{key}/a//c"]
    assert later["StartAfter"] == f"{key}/a//b"


def test_copies_deletions_and_presigned_urls_address_exactly_one_key(plain: Any, filled: list[str], key: str) -> None:
    plain.copy_object(Bucket=BUCKET, Key=f"{key}/copy//1", CopySource={"Bucket": BUCKET, "Key": f"{key}/a//b"})
    assert read(plain, f"{key}/copy//1") == f"{key}/a//b".encode()
    plain.copy_object(
        Bucket=BUCKET,
        Key=f"{key}/copy\\2",
        CopySource=f"{BUCKET}/{key}/a\\b",
        MetadataDirective="REPLACE",
        Metadata={"a": "b"},
    )
    assert read(plain, f"{key}/copy\\2") == f"{key}/a\\b".encode()
    url = plain.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": f"{key}//b"})
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == f"{key}//b".encode()
    plain.delete_object(Bucket=BUCKET, Key=f"{key}/a//b")
    assert read(plain, f"{key}/a/b") == f"{key}/a/b".encode()
    with pytest.raises(ClientError) as error:
        plain.get_object(Bucket=BUCKET, Key=f"{key}/a//b")
    assert refusal(error) == ("NoSuchKey", 404)
    assert error.value.response["Error"].get("Key", f"{key}/a//b") == f"{key}/a//b"


def test_deletions_of_many_keys_answer_with_the_keys(plain: Any, filled: list[str], key: str) -> None:
    wanted = [name for name in filled if name != f"{key}/a/b"]
    answer = plain.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": name} for name in wanted]})
    assert sorted((entry["Key"] for entry in answer["Deleted"]), key=str.encode) == wanted
    assert keys_under(plain, f"{key}/") == [f"{key}/a/b"]


@pytest.mark.parametrize("digest", ["content-md5", "x-amz-checksum-sha256"])
def test_a_deletion_with_the_digest_of_another_body_deletes_nothing(
    service: Service, plain: Any, filled: list[str], key: str, digest: str
) -> None:
    body = f"<Delete><Object><Key>{key}/a//b</Key></Object></Delete>".encode()
    make = hashlib.md5 if digest == "content-md5" else hashlib.sha256
    wrong = base64.b64encode(make(b"other").digest()).decode()
    answer = send(service, "POST", f"/{BUCKET}?delete=", body=body, headers={digest: wrong})
    assert (answer.status, answer.code) == (400, "BadDigest")
    assert read(plain, f"{key}/a//b") == f"{key}/a//b".encode()
    right = base64.b64encode(make(body).digest()).decode()
    assert send(service, "POST", f"/{BUCKET}?delete=", body=body, headers={digest: right}).status == 200


def test_an_upload_in_parts_keeps_its_key(plain: Any, key: str) -> None:
    full = f"{key}//model\\1"
    begun = plain.create_multipart_upload(Bucket=BUCKET, Key=full)
    assert begun["Key"] == full
    named = {"Bucket": BUCKET, "Key": full, "UploadId": begun["UploadId"]}
    part = plain.upload_part(**named, PartNumber=1, Body=b"x" * 5 * MIB)
    listed = plain.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{key}//")
    assert [entry["Key"] for entry in listed["Uploads"]] == [full]
    assert plain.list_parts(**named)["Key"] == full
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    assert plain.complete_multipart_upload(**named, MultipartUpload=parts)["Key"] == full
    assert plain.head_object(Bucket=BUCKET, Key=full)["ContentLength"] == 5 * MIB


def test_agents_that_read_the_store_directly_see_the_same_keys(
    service: Service, plain: Any, filled: list[str], key: str
) -> None:
    with ObjectStore(service.store) as store:
        listed = [info.key for info in store.list_objects(BUCKET, f"{key}/")]
        assert sorted(listed, key=str.encode) == filled
        with store.open_reader(BUCKET, f"{key}/a//b") as reader:
            assert reader.read() == f"{key}/a//b".encode()
        store.put_bytes(BUCKET, f"{key}/agent//1\\", b"written")
        store.copy(BUCKET, f"{key}/agent//1\\", f"{key}/agent//2")
        store.delete(BUCKET, f"{key}/agent//1\\")
    assert keys_under(plain, f"{key}/agent/") == [f"{key}/agent//2"]
    assert read(plain, f"{key}/agent//2") == b"written"


def test_a_job_s_key_keeps_to_its_place_whatever_the_parts(service: Service, plain: Any) -> None:
    plain.put_object(Bucket=BUCKET, Key="narrow//secret", Body=b"secret")
    plain.put_object(Bucket=BUCKET, Key=f"{NARROW_PLACE}//own", Body=b"own")
    narrow = service.client(credentials=NARROW)
    assert read(narrow, f"{NARROW_PLACE}//own") == b"own"
    assert keys_under(narrow, NARROW_PLACE) == [f"{NARROW_PLACE}//own"]
    narrow.put_object(Bucket=BUCKET, Key=f"{NARROW_PLACE}/\\x", Body=b"1")
    for name in ("narrow//secret", "narrow//job-1/x", "/narrow/job-1/x", "narrow\\job-1/x"):
        with pytest.raises(ClientError) as error:
            narrow.put_object(Bucket=BUCKET, Key=name, Body=b"1")
        assert refusal(error)[0] == "AccessDenied"
    stored = "narrow/.\U0010fffd/secret"
    for method in ("get_object", "head_object", "delete_object"):
        with pytest.raises(ClientError):
            getattr(narrow, method)(Bucket=BUCKET, Key=stored)
    with pytest.raises(ClientError) as error:
        narrow.list_objects_v2(Bucket=BUCKET, Prefix="narrow//")
    assert refusal(error)[0] == "AccessDenied"
    assert send(service, "GET", f"/{BUCKET}/narrow//secret").body == b"secret"
    narrow.close()


def test_the_body_of_an_object_is_never_rewritten(service: Service, plain: Any, key: str) -> None:
    content = "keys.\U0010fffd[\U0010fffd".encode()
    plain.put_object(Bucket=BUCKET, Key=f"{key}//x", Body=content)
    assert read(plain, f"{key}//x") == content
    answer = send(service, "GET", f"/{BUCKET}/{key}//x", payload_hash=sigv4.UNSIGNED_PAYLOAD)
    assert answer.body == content


@pytest.mark.parametrize(
    "named",
    [
        "<Key>narrow/vic<Key>{own}</Key>tim</Key>",
        "<Key>narrow/victim<x/></Key>",
        "<Key>{own}</Key><Key>narrow/victim</Key>",
        "<Key>{own}</Key><VersionId>../../victim</VersionId>",
        "<x:Key xmlns:x='y'>narrow/victim</x:Key><Key>{own}</Key>",
    ],
)
def test_a_deletion_reaches_no_key_but_those_that_were_checked(service: Service, plain: Any, named: str) -> None:
    plain.put_object(Bucket=BUCKET, Key="narrow/victim", Body=b"kept")
    own = f"{NARROW_PLACE}/mine"
    body = f"<Delete><Object>{named.format(own=own)}</Object></Delete>".encode()
    answer = send(service, "POST", f"/{BUCKET}?delete=", body=body, credentials=NARROW)
    assert answer.status in (400, 403)
    assert read(plain, "narrow/victim") == b"kept"


@pytest.mark.parametrize("condition", ["Size", "LastModifiedTime"])
def test_a_deletion_with_a_condition_that_the_store_ignores_deletes_nothing(
    service: Service, plain: Any, key: str, condition: str
) -> None:
    plain.put_object(Bucket=BUCKET, Key=f"{key}/x", Body=b"kept")
    entry = f"<Key>{key}/x</Key><{condition}>1</{condition}>"
    body = f"<Delete><Object>{entry}</Object></Delete>".encode()
    answer = send(service, "POST", f"/{BUCKET}?delete=", body=body)
    assert (answer.status, answer.code) == (501, "NotImplemented")
    assert read(plain, f"{key}/x") == b"kept"


def test_deletions_name_keys_with_line_ends_and_in_other_encodings_as_they_are(
    service: Service, plain: Any, key: str
) -> None:
    names = [f"{key}/Icon\r", f"{key}/Icon\n", f"{key}/a\tb", f"{key}//x"]
    for name in names:
        plain.put_object(Bucket=BUCKET, Key=name, Body=b"1")
    kept = names.pop(1)
    answer = plain.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": name} for name in names]})
    assert sorted(entry["Key"] for entry in answer["Deleted"]) == sorted(names)
    assert keys_under(plain, f"{key}/") == [kept]
    for number, text in enumerate(("\u00fc", "sp  ace")):
        plain.put_object(Bucket=BUCKET, Key=f"{key}/{text}", Body=b"1")
        encoding = ("ISO-8859-1", "UTF-8")[number]
        body = f'<?xml version="1.0" encoding = "{encoding}"?><Delete><Object><Key>{key}/{text}</Key></Object></Delete>'
        assert send(service, "POST", f"/{BUCKET}?delete=", body=body.encode(encoding)).status == 200
        assert keys_under(plain, f"{key}/") == [kept]


@pytest.mark.parametrize("name", ["x-amz-checksum-crc32c", "x-amz-checksum-crc64nvme", "x-amz-checksum-crc32"])
def test_every_checksum_of_a_deletion_is_checked(service: Service, plain: Any, key: str, name: str) -> None:
    plain.put_object(Bucket=BUCKET, Key=f"{key}/x", Body=b"1")
    body = f"<Delete><Object><Key>{key}/x</Key></Object></Delete>".encode()
    make = {"32c": crc32c, "vme": crc64nvme, "c32": crc32}[name[-3:]]
    answer = send(service, "POST", f"/{BUCKET}?delete=", body=body, headers={name: make(body + b" ")})
    assert (answer.status, answer.code) == (400, "BadDigest")
    assert send(service, "POST", f"/{BUCKET}?delete=", body=body, headers={name: make(body)}).status == 200


@pytest.mark.parametrize("prefix", ["a/.", "a/[", "."])
def test_a_prefix_lists_and_removes_only_keys_that_begin_with_it(plain: Any, key: str, prefix: str) -> None:
    bucket = f"b{key}{'abc'[['a/.', 'a/[', '.'].index(prefix)]}"
    plain.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    for name in ("a//b", "a/\\x", "/b", "a/.env", "a/[1]", ".profile"):
        plain.put_object(Bucket=bucket, Key=name, Body=b"1")
    expected = {"a/.": ["a/.env"], "a/[": ["a/[1]"], ".": [".profile"]}[prefix]
    for arguments in ({}, {"Delimiter": "/"}):
        listed = plain.list_objects_v2(Bucket=bucket, Prefix=prefix, **arguments)
        assert [entry["Key"] for entry in listed["Contents"]] == expected
        assert (listed["KeyCount"], "CommonPrefixes" in listed) == (1, False)
    assert [entry["Key"] for entry in plain.list_objects(Bucket=bucket, Prefix=prefix)["Contents"]] == expected
    found = plain.list_object_versions(Bucket=bucket, Prefix=prefix)["Versions"]
    assert [entry["Key"] for entry in found] == expected


def test_a_page_has_at_most_a_thousand_keys_whatever_is_asked(service: Service, plain: Any) -> None:
    asked = []
    for query in ("list-type=2&max-keys=5000", "max-keys=5000", "uploads&max-uploads=5000"):
        answer = send(service, "GET", f"/{BUCKET}?{query}")
        asked.append(b">1000</Max" in answer.body)
    assert asked == [True, True, True]


def test_agents_list_only_keys_that_begin_with_the_prefix(service: Service, plain: Any, key: str) -> None:
    for name in ("a//b", "a/.env"):
        plain.put_object(Bucket=BUCKET, Key=f"{key}/{name}", Body=b"1")
    with ObjectStore(service.store) as store:
        assert [info.key for info in store.list_objects(BUCKET, f"{key}/a/.")] == [f"{key}/a/.env"]


@pytest.mark.parametrize("prefix", ["logs//", "a\\b", "tmp/.", "x["])
def test_rules_that_would_apply_to_other_keys_are_refused(plain: Any, prefix: str) -> None:
    rule = {"ID": "1", "Status": "Enabled", "Filter": {"Prefix": prefix}, "Expiration": {"Days": 1}}
    with pytest.raises(ClientError) as error:
        plain.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [rule]})
    assert refusal(error) == ("NotImplemented", 501)
    rule["Filter"] = {"Prefix": "logs/"}
    plain.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [rule]})
    plain.delete_bucket_lifecycle(Bucket=BUCKET)
