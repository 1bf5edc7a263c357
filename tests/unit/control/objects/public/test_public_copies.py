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
    assert public_copies.source_headers(PART, given) == [("range", "bytes=0-9"), ("if-match", '"e"')]
    assert public_copies.source_headers(COPY, given) == [("if-match", '"e"')], "a whole object is copied, as by S3"


@pytest.mark.parametrize("value", ["bytes=10-5", "bytes=0-", "bytes=-5", "0-5", "bytes=0-1,3-4", "bytes=a-b"])
def test_a_range_of_another_form_is_refused(value):
    with pytest.raises(WireError, match="must be bytes=FIRST-LAST") as error:
        public_copies.source_headers(PART, headers(("x-amz-copy-source-range", value)))
    assert error.value.code == "InvalidArgument"


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
        public_copies.check_answer(status, "Reason", "", asked_range=None, source="/open-data/a")
    assert (error.value.code, error.value.http_status) == (code, told)


@pytest.mark.parametrize(
    ("status", "content_range", "asked_range"),
    [(200, "", None), (206, "bytes 0-9/100", "bytes=0-9"), (206, "bytes 0-9/*", "bytes=0-9")],
)
def test_a_source_that_is_read_passes(status, content_range, asked_range):
    public_copies.check_answer(status, "OK", content_range, asked_range=asked_range, source="/open-data/a")


@pytest.mark.parametrize(
    ("status", "content_range", "asked_range", "code"),
    [
        (200, "", "bytes=0-9", "ServiceUnavailable"),
        (206, "bytes 0-9/100", None, "ServiceUnavailable"),
        (206, "bytes 0-8/9", "bytes=0-9", "InvalidRange"),
        (206, "", "bytes=0-9", "InvalidRange"),
    ],
)
def test_another_range_than_the_one_asked_for_is_not_stored(status, content_range, asked_range, code):
    with pytest.raises(WireError, match="The source /open-data/a of the copy") as error:
        public_copies.check_answer(status, "OK", content_range, asked_range=asked_range, source="/open-data/a")
    assert error.value.code == code


def test_metadata_that_is_not_text_is_refused_by_name():
    source = [("Content-Type", "text/csv"), ("x-amz-meta-note", "caf\udce9")]
    with pytest.raises(WireError, match="x-amz-meta-note holds bytes"):
        public_copies.upload_headers(COPY, headers(), source, length=3, mark="")
    replaced = headers(("x-amz-metadata-directive", "REPLACE"))
    assert public_copies.upload_headers(COPY, replaced, source, length=3, mark="")


@pytest.mark.parametrize(("asked", "name"), [(COPY, b"CopyObjectResult"), (PART, b"CopyPartResult")])
def test_the_answer_names_etag_and_time(asked, name):
    document = public_copies.result_document(asked, etag='"e"', now=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert b"<" + name in document
    assert b'<LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>"e"</ETag>' in document
