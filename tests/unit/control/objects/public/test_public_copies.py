"""Copies from a public bucket: which headers the upload has, and which errors a source leads to."""

from datetime import UTC, datetime

import pytest

from clary.base.errors import WireError
from clary.control.objects.encryption import MARK
from clary.control.objects.public import public_copies
from clary.control.objects.s3_request import S3Request

COPY = S3Request(method="PUT", bucket="mine", key="a", query=())
PART = S3Request(method="PUT", bucket="mine", key="a", query=(("uploadId", "u"), ("partNumber", "1")))
SOURCE = [("Content-Type", "text/csv"), ("x-amz-meta-rows", "7"), ("ETag", '"e"'), ("x-amz-id-2", "x"), (MARK, "evil")]


def headers(*more):
    return [("x-amz-copy-source", "/open-data/a"), ("x-amz-storage-class", "STANDARD"), *more]


def test_a_copy_has_the_metadata_of_its_source():
    told = public_copies.upload_headers(COPY, headers(("content-type", "own/type")), SOURCE, length=3, mark="")
    assert dict(told) == {
        "x-amz-storage-class": "STANDARD",
        "content-type": "text/csv",
        "x-amz-meta-rows": "7",
        "content-length": "3",
    }


def test_a_copy_with_metadata_of_its_own_has_only_these():
    given = headers(("x-amz-metadata-directive", "REPLACE"), ("content-type", "own/type"), ("x-amz-meta-a", "b"))
    told = dict(public_copies.upload_headers(COPY, given, SOURCE, length=3, mark="aws:kms key 0"))
    assert told == {
        "x-amz-storage-class": "STANDARD",
        "content-type": "own/type",
        "x-amz-meta-a": "b",
        MARK: "aws:kms key 0",
        "content-length": "3",
    }


def test_a_part_has_no_metadata():
    told = public_copies.upload_headers(PART, [("x-amz-copy-source", "/o/a")], SOURCE, length=3, mark="")
    assert told == [("content-length", "3")]


def test_range_and_conditions_of_a_copy_go_to_its_source():
    given = headers(("x-amz-copy-source-range", "bytes=0-9"), ("x-amz-copy-source-if-match", '"e"'))
    assert public_copies.source_headers(given) == [("range", "bytes=0-9"), ("if-match", '"e"')]


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (403, "AccessDenied", 403),
        (404, "NoSuchKey", 404),
        (304, "PreconditionFailed", 412),
        (412, "PreconditionFailed", 412),
        (416, "InvalidRange", 416),
        (500, "ServiceUnavailable", 503),
        (301, "ServiceUnavailable", 503),
    ],
)
def test_a_source_that_can_not_be_read_refuses_the_copy(status, code, told):
    with pytest.raises(WireError, match="The source /open-data/a of the copy") as error:
        public_copies.check_answer(status, "Reason", source="/open-data/a")
    assert (error.value.code, error.value.http_status) == (code, told)


@pytest.mark.parametrize("status", [200, 206])
def test_a_source_that_is_read_passes(status):
    public_copies.check_answer(status, "OK", source="/open-data/a")


@pytest.mark.parametrize(("asked", "name"), [(COPY, b"CopyObjectResult"), (PART, b"CopyPartResult")])
def test_the_answer_names_etag_and_time(asked, name):
    document = public_copies.result_document(asked, etag='"e"', now=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert b"<" + name in document
    assert b'<LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>"e"</ETag>' in document
