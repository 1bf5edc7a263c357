"""Refusal of requests that the embedded store would mistake for other requests; parameters that it knows pass."""

import pytest

from clary.base.errors import WireError
from clary.control.objects.forms.subresources import KNOWN, check_subresources
from clary.control.objects.s3_request import parse_request


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("DELETE", "/bucket", "website"),
        ("DELETE", "/bucket", "replication"),
        ("DELETE", "/bucket", "policy&website"),
        ("DELETE", "/bucket/key", "annotation&annotationName=a"),
        ("PUT", "/bucket", "logging"),
        ("PUT", "/bucket", "subresource-of-tomorrow"),
        ("PUT", "/bucket/key", "encryption"),
        ("PUT", "/bucket/key", "renameObject"),
        ("POST", "/bucket", "metadataTable"),
        ("GET", "/bucket/key", "torrent"),
        ("HEAD", "/bucket/key", "annotation"),
    ],
)
def test_a_parameter_that_the_store_does_not_know_is_refused_by_name(method, path, query):
    with pytest.raises(WireError) as error:
        check_subresources(parse_request(method, path, query))
    assert (error.value.code, error.value.http_status) == ("NotImplemented", 501)
    assert query.split("&")[-1].split("=")[0] in error.value.message or "annotation" in error.value.message


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("PUT", "/bucket", ""),
        ("PUT", "/bucket", "x-id=CreateBucket"),
        ("PUT", "/bucket/key", "partNumber=1&uploadId=a&x-id=UploadPart"),
        ("PUT", "/bucket/key", "X-Amz-Expires=60&X-Amz-Signature=a&x-amz-meta-step=7"),
        ("PUT", "/bucket/key", "AWSAccessKeyId=a&Signature=b&Expires=1"),
        ("DELETE", "/bucket/key", "versionId=a"),
        ("POST", "/bucket", "delete"),
        ("POST", "/bucket/key", "uploads"),
        ("GET", "/bucket", "list-type=2&prefix=a&max-keys=1&whatever"),
        ("GET", "/bucket/key", "response-content-type=a&partNumber=1&versionId=b"),
        ("GET", "/", ""),
    ],
)
def test_requests_that_the_store_knows_pass(method, path, query):
    check_subresources(parse_request(method, path, query))


@pytest.mark.parametrize(("method", "has_key"), KNOWN)
def test_each_known_parameter_passes(method, has_key):
    for name in KNOWN[method, has_key]:
        check_subresources(parse_request(method, "/bucket/key" if has_key else "/bucket", name))
