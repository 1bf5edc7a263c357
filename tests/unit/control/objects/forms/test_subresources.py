"""Refusal of requests that the embedded store would mistake for other requests; parameters that it knows pass."""

import json

import pytest

from clary.base.errors import WireError
from clary.control.objects.forms.subresources import KNOWN, check_policy, check_subresources
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
        ("POST", "/bucket/key", "select-type=2&select"),
        ("POST", "/bucket/key", "restore"),
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


def policy(**facts):
    statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::bucket/*"}
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{**statement, "Effect": "Allow"}, statement | facts]}
    ).encode()


@pytest.mark.parametrize(
    "facts",
    [
        {"Action": "s3:*", "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
        {"Action": "s3:GetObject", "Condition": {"Bool": {"AWS:securetransport": ["false"]}}},
        {"Action": "*"},
        {"Action": ["s3:GetObject", "s3:deleteBucket*"]},
        {"Action": "s3:PutBucketPolicy"},
    ],
)
def test_a_policy_that_would_close_the_bucket_to_its_owner_is_refused(facts):
    with pytest.raises(WireError) as error:
        check_policy(policy(**facts))
    assert (error.value.code, error.value.http_status) == ("NotImplemented", 501)
    assert "close the bucket to its owner" in error.value.message


@pytest.mark.parametrize("facts", [{}, {"Effect": "Allow", "Action": "s3:*"}, {"Action": ["s3:PutObject", "s3:Get*"]}])
def test_other_policies_pass(facts):
    check_policy(policy(**facts))
    check_policy(b"[1]")
    check_policy(None)


def test_names_of_members_in_other_letters_count_as_the_store_reads_them():
    document = policy(Action="s3:*").decode().lower().replace('"deny"', '"Deny"')
    with pytest.raises(WireError, match="close the bucket to its owner"):
        check_policy(document.encode())


@pytest.mark.parametrize(
    "body",
    [b"no json", policy(Action="s3:*") + b" x", policy(Action="s3:*", Sid="\u00e4").replace(b"\\u00e4", b"\xe4")],
)
def test_a_policy_that_is_no_json_is_refused_because_the_store_may_take_it(body):
    with pytest.raises(WireError) as error:
        check_policy(body)
    assert (error.value.code, error.value.http_status) == ("MalformedPolicy", 400)
