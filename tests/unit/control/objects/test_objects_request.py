"""Parsing of S3 requests, and refused keys."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import WireError
from clary.control.objects import s3_request
from clary.control.objects.s3_request import parse_request, split_target


def refused(action: object, *arguments: object, **keywords: object) -> tuple[str, int]:
    assert callable(action)
    with pytest.raises(WireError) as error:
        action(*arguments, **keywords)
    return error.value.code, error.value.http_status


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/b/k?x=1&y", ("/b/k", "x=1&y")),
        ("/b/k", ("/b/k", "")),
        ("http://host:1/b/k?x", ("/b/k", "x")),
        ("http://host", ("/", "")),
        ("//b/k", ("//b/k", "")),
    ],
)
def test_a_target_is_split_without_decoding(target: str, expected: tuple[str, str]) -> None:
    assert split_target(target) == expected


def test_target_that_is_no_url_is_refused() -> None:
    with pytest.raises(WireError, match="parse the specified URI") as error:
        split_target("http://[")
    assert (error.value.code, error.value.http_status) == ("InvalidURI", 400)


def test_service_bucket_and_object_are_distinguished() -> None:
    assert [
        (r.bucket, r.key) for r in (parse_request("GET", path, "") for path in ("/", "/b-1", "/b-1/", "/b-1/k/l"))
    ] == [
        ("", ""),
        ("b-1", ""),
        ("b-1", ""),
        ("b-1", "k/l"),
    ]


def test_authentication_is_removed_from_the_query_and_other_parameters_keep_their_order() -> None:
    query = (
        "uploadId=a%2Bb&X-Amz-Signature=1&x-amz-meta-a=2&AWSAccessKeyId=A&Signature=B&Expires=1&acl&response-expires=x"
    )
    request = parse_request("GET", "/bucket/key", query)
    assert request.query == (("uploadId", "a+b"), ("x-amz-meta-a", "2"), ("acl", ""), ("response-expires", "x"))
    assert request.has("acl")
    assert not request.has("Expires")


@pytest.mark.parametrize("algorithm", ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"])
def test_a_checksum_of_the_body_in_a_url_is_ignored(algorithm: str) -> None:
    query = f"x-amz-checksum-{algorithm}=AAAAAA%3D%3D&X-Amz-Sdk-Checksum-Algorithm=CRC32&x-amz-checksum-mode=ENABLED"
    assert parse_request("PUT", "/bucket/key", query).query == (("x-amz-checksum-mode", "ENABLED"),)


def test_headers_that_a_url_of_version_2_holds_are_no_parameters() -> None:
    signed = "AWSAccessKeyId=A&Signature=B&Expires=1"
    request = parse_request("PUT", "/bucket/key", f"content-type=text%2Fplain&Content-MD5=xy%3D%3D&{signed}")
    assert request.query == ()
    assert request.headers_of_url == (("content-type", "text/plain"), ("content-md5", "xy=="))
    for other in ("X-Amz-Signature=1", "AWSAccessKeyId=A", "Signature=B"):
        request = parse_request("PUT", "/bucket/key", f"content-type=a&{other}")
        assert (request.query, request.headers_of_url) == ((("content-type", "a"),), ())


@given(
    st.lists(
        st.text(
            st.characters(exclude_characters="/\0\U0010fffd", exclude_categories=["Cs"]), min_size=0, max_size=10
        ).filter(lambda part: part not in (".", "..", ".uploads", ".versions") and not part.endswith(".versions")),
        min_size=1,
        max_size=5,
    )
)
def test_every_storable_key_survives_encoding_and_parsing(parts: list[str]) -> None:
    key = "/".join(parts)
    request = parse_request("PUT", "/bucket/" + quote(key, safe="/~!$'()*,:;=@+&"), "")
    assert request.key == key
    assert parse_request("GET", request.path, "").key == key


@pytest.mark.parametrize(
    "key",
    [
        "./a",
        "a/.",
        "a/../b",
        "a//..",
        "..",
        "a\0",
        "a\U0010fffd",
        "\\" * 52,
        ".uploads",
        "a/.versions",
        "k.versions/1",
        "s" * 256,
    ],
)
def test_a_key_that_the_store_can_not_hold_is_refused_for_writes_and_absent_for_reads(key: str) -> None:
    path = "/bucket/" + quote(key, safe="/")
    assert refused(parse_request, "PUT", path, "") == ("InvalidArgument", 400)
    assert refused(parse_request, "DELETE", path, "") == ("InvalidArgument", 400)
    assert refused(parse_request, "HEAD", path, "") == ("NoSuchKey", 404)
    assert refused(s3_request.check_copy_source, path) == ("NoSuchKey", 404)


def test_encoded_slashes_give_the_same_key_as_plain_ones() -> None:
    assert parse_request("GET", "/bucket/a%2Fb", "").path == "/bucket/a/b"
    assert parse_request("PUT", "/bucket/a%2F%2Fb", "").key == "a//b"
    assert refused(parse_request, "PUT", "/bucket/%2e%2e/b", "") == ("InvalidArgument", 400)


def test_length_of_a_key_is_counted_in_bytes() -> None:
    umlauts = "/".join(["ü" * 100] * 5)  # 1004 bytes
    parse_request("PUT", "/bucket/" + quote(umlauts + "x" * 20), "")
    assert refused(parse_request, "PUT", "/bucket/" + quote(umlauts + "x" * 21), "") == ("KeyTooLongError", 400)


@pytest.mark.parametrize("path", ["/bucket/%ff", "/bucket/\udcff"])
def test_key_that_is_not_utf8_is_refused(path: str) -> None:
    assert refused(parse_request, "GET", path, "") == ("InvalidURI", 400)


@pytest.mark.parametrize("prefix", ["a%F4%8F%BF%BD", "%00"])
def test_a_prefix_of_keys_that_the_store_can_not_hold_is_accepted_for_reads_alone(prefix: str) -> None:
    assert parse_request("GET", "/bucket", f"list-type=2&prefix={prefix}").has_unstorable_prefix
    assert refused(parse_request, "DELETE", "/bucket", f"prefix={prefix}") == ("InvalidArgument", 400)
    assert not parse_request("GET", "/bucket", "list-type=2&prefix=a/b").has_unstorable_prefix


@pytest.mark.parametrize(
    "bucket", ["ab", "a" * 64, "Upper", "under_score", "a..b", "-a-", "a-", "1.2.3.4", "%20%20%20", "..", "a%00b"]
)
def test_bad_bucket_name_is_refused(bucket: str) -> None:
    assert refused(parse_request, "PUT", f"/{bucket}", "") == ("InvalidBucketName", 400)


@pytest.mark.parametrize("bucket", ["abc", "a" * 63, "my.bucket-1", "1.2.3"])
def test_a_good_bucket_name_is_accepted(bucket: str) -> None:
    assert parse_request("PUT", f"/{bucket}", "").bucket == bucket


def test_object_without_a_bucket_is_refused() -> None:
    assert refused(parse_request, "GET", "//key", "") == ("InvalidURI", 400)


@pytest.mark.parametrize("source", ["", "bucket", "/bucket/", "bucket?versionId=1"])
def test_copy_source_without_a_key_is_refused(source: str) -> None:
    assert refused(s3_request.check_copy_source, source) == ("InvalidArgument", 400)


def test_a_copy_source_with_a_version_is_accepted() -> None:
    s3_request.check_copy_source("bucket/a%20b?versionId=a-.~b")


@pytest.mark.parametrize("source", ["bucket%2Fa%20b.txt", "%2Fbucket%2Fa%20b.txt", "/bucket/a%20b.txt?versionId=x"])
def test_a_copy_source_may_encode_its_slashes(source: str) -> None:
    assert s3_request.check_copy_source(source) == ("bucket", "a b.txt")
    assert s3_request.check_copy_source("bucket%2Fa%2F%2Fb") == ("bucket", "a//b")
    assert s3_request.check_copy_source("bucket%2Fa%252Fb%3Fc") == ("bucket", "a%2Fb?c")
