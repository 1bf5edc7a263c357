"""Policies of browser uploads: the fields that they allow, and hostile policies."""

from __future__ import annotations

import base64
import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.config import Config

from clary.base.errors import WireError
from clary.control.objects.forms.form_upload import FormUpload, judge_form, redirect_address
from clary.control.objects.forms.post_policy import MAX_OBJECT_BYTES, read_policy

KEY, SECRET = "USER", "user-secret"
BUCKET = "bucket"
REGION = "us-west-2"
NOW = datetime.now(
    UTC
)  # time of the import; boto3 signs with the current time, which may be an hour later in a whole run
LATER = (NOW + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
COVERED = [{"bucket": BUCKET}, ["starts-with", "$key", "in/"]]


def form(
    conditions: list[Any] | None = None,
    *,
    key: str = "in/a",
    version: str = "s3v4",
    region: str = REGION,
    **fields: str,
) -> dict[str, str]:
    client = boto3.client(
        "s3",
        endpoint_url="http://h:1",
        region_name=region,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(signature_version=version),
    )
    made = client.generate_presigned_post(BUCKET, key, Fields=fields, Conditions=conditions, ExpiresIn=600)
    client.close()
    return {name.lower(): value for name, value in made["fields"].items()}


def judge(
    fields: dict[str, str], *, bucket: str = BUCKET, file_name: str = "f.txt", after: timedelta = timedelta()
) -> FormUpload:
    return judge_form(
        fields,
        bucket=bucket,
        file_name=file_name,
        find_secret={KEY: SECRET}.get,
        now=datetime.now(UTC) + after,
        skew_s=300,
        region=REGION,
    )


def refusal(fields: dict[str, str], **options: Any) -> tuple[str, int]:
    with pytest.raises(WireError) as error:
        judge(fields, **options)
    return error.value.code, error.value.http_status


def encoded(document: Any) -> str:
    text = document if isinstance(document, str) else json.dumps(document)
    return base64.b64encode(text.encode()).decode()


def policy(*conditions: Any, expiration: Any = LATER) -> str:
    return encoded({"expiration": expiration, "conditions": [*COVERED, *conditions]})


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_a_form_that_boto3_signs_is_accepted_until_it_expires(version):
    fields = form([["content-length-range", 1, 10]], version=version)
    upload = judge(fields)
    assert (upload.access_key_id, upload.asked.bucket, upload.asked.key) == (KEY, BUCKET, "in/a")
    assert (upload.policy.least_bytes, upload.policy.most_bytes, upload.status) == (1, 10, 204)
    assert refusal(fields, after=timedelta(hours=1)) == ("AccessDenied", 403)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("s3v4", "policy"),
        ("s3v4", "x-amz-signature"),
        ("s3v4", "x-amz-credential"),
        ("s3v4", "x-amz-date"),
        ("s3", "policy"),
        ("s3", "signature"),
        ("s3", "awsaccesskeyid"),
    ],
)
def test_a_form_that_was_changed_is_refused(version, name):
    fields = form(version=version)
    changed = fields[name][:-2] + ("AA" if fields[name][-2:] != "AA" else "BB")
    assert refusal({**fields, name: changed})[1] in (400, 403)
    del fields[name]
    assert refusal(fields)[1] in (400, 403)


def test_a_form_with_another_bucket_or_key_or_with_unsigned_fields_is_refused():
    fields = form()
    assert refusal(fields, bucket="other") == ("AccessDenied", 403)
    assert refusal({**fields, "key": "elsewhere"}) == ("AccessDenied", 403)
    assert refusal({**fields, "x-amz-meta-a": "1"}) == ("AccessDenied", 403)
    assert refusal({**fields, "bucket": "other"}) == ("InvalidArgument", 400)
    assert judge({**fields, "x-ignore-me": "1"}).headers == []


def test_a_form_signed_for_another_region_is_refused():
    assert refusal(form(region="eu-central-1")) == ("AuthorizationQueryParametersError", 400)


def test_a_form_with_a_session_token_is_refused():
    fields = form([{"x-amz-security-token": "t"}], **{"x-amz-security-token": "t"})
    assert refusal(fields) == ("InvalidToken", 400)


def test_a_signature_older_than_a_week_is_refused_whatever_the_policy_says():
    assert refusal(form(), after=timedelta(days=8)) == ("AccessDenied", 403)
    assert refusal(form(), after=-timedelta(minutes=10)) == ("AccessDenied", 403)


def test_the_file_name_is_inserted_into_the_key_before_conditions_are_checked():
    fields = form(key="in/${filename}")
    assert judge(fields, file_name="a.bin").asked.key == "in/a.bin"
    assert refusal(fields, file_name="..") == ("InvalidArgument", 400)
    assert (
        refusal(form(key="${filename}", conditions=[["starts-with", "$key", "in/"]]), file_name="x")[0]
        == "AccessDenied"
    )


def test_fields_become_headers_and_no_field_forges_another_header():
    named = {"acl": "private", "Content-Type": "text/css", "x-amz-meta-step": "7"}
    fields = form([{name: value} for name, value in named.items()], **named)
    assert dict(judge(fields).headers) == {"x-amz-acl": "private", "content-type": "text/css", "x-amz-meta-step": "7"}
    for name in ("content-type", "x-amz-meta-a"):
        fields = form([["starts-with", f"${name}", ""]], **{name: "a\r\nx-amz-copy-source: /other/key"})
        assert refusal(fields) == ("InvalidArgument", 400)
    assert refusal(form([{"tagging": "t"}], tagging="t")) == ("NotImplemented", 501)
    fields = form([{"x-amz-copy-source": "/b/k"}], **{"x-amz-copy-source": "/b/k"})
    assert refusal(fields) == ("NotImplemented", 501)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://h/done?a=b", "https://h/done?a=b&bucket=bucket&key=in%2Fa&etag=%22e%22"),
        ("javascript:alert(1)", ""),
        ("//h/x", ""),
        ("https://h/\r\nSet-Cookie: a", ""),
        ("http://[", ""),
    ],
)
def test_a_redirect_is_followed_only_to_an_http_address(address, expected):
    upload = judge(form([{"success_action_redirect": address}], success_action_redirect=address))
    assert (redirect_address(upload, '"e"') if upload.redirect else "") == expected


@pytest.mark.parametrize(("status", "expected"), [("200", 200), ("201", 201), ("404", 204), ("", 204)])
def test_the_status_of_success_is_one_of_three(status, expected):
    assert judge(form([{"success_action_status": status}], success_action_status=status)).status == expected


@pytest.mark.parametrize(
    "text",
    [
        "not base64!",
        encoded("{"),
        encoded("[" * 9000),
        encoded('{"a":' * 2000),
        encoded("1" * 5000),
        encoded("NaN"),
        base64.b64encode(b"\xff\xfe\xfd").decode(),
        encoded([]),
        encoded({"expiration": LATER}),
        encoded({"conditions": COVERED}),
        encoded({"expiration": LATER, "conditions": {}}),
        encoded({"expiration": LATER, "conditions": []}),
        encoded({"expiration": LATER, "conditions": COVERED, "more": 1}),
        encoded({"expiration": LATER, "CONDITIONS": COVERED}),
        encoded({"expiration": LATER, "conditions": COVERED * 200}),
        policy({}),
        policy([]),
        policy(None),
        policy("key"),
        policy([[["eq"]]]),
        policy(["eq", "key", "in/a"]),
        policy(["eq", "$key"]),
        policy(["matches", "$key", ".*"]),
        policy({"acl": ["private"]}),
        policy({"acl": True}),
        policy(["content-length-range", 1]),
        policy(["content-length-range", -1, 5]),
        policy(["content-length-range", 5, 1]),
        policy(["content-length-range", True, 5]),
        policy(["content-length-range", 0, 1e3]),
        policy(["content-length-range", "0", "9" * 40]),
        policy(expiration="2026-01-31"),
        policy(expiration="2026-13-31T00:00:00Z"),
        policy(expiration="2026-01-31T00:00:00+02:00"),
        policy(expiration=9999999999),
        policy(expiration=None),
    ],
    ids=itertools.count(),  # the texts hold the time
)
def test_an_invalid_policy_document_is_refused(text):
    with pytest.raises(WireError) as error:
        read_policy(text)
    assert (error.value.code, error.value.http_status) == ("InvalidPolicyDocument", 400)


def test_all_content_length_ranges_of_a_policy_apply():
    found = read_policy(policy(["content-length-range", 2, 100], ["Content-Length-Range", "1", "50"]))
    assert (found.least_bytes, found.most_bytes) == (2, 50)
    found = read_policy(policy(["content-length-range", 0, 10**17]))
    assert found.most_bytes == MAX_OBJECT_BYTES


@pytest.mark.parametrize("missing", ["bucket", "key"])
def test_a_policy_without_conditions_on_bucket_and_key_is_refused(missing):
    kept = [item for item, name in zip(COVERED, ("bucket", "key"), strict=True) if name != missing]
    found = read_policy(encoded({"expiration": LATER, "conditions": kept}))
    fields = {"key": "in/a", "bucket": BUCKET}
    with pytest.raises(WireError, match=f"names \\${missing}"):
        found.check(fields, now=NOW)


def test_names_of_fields_and_operators_are_case_insensitive():
    found = read_policy(policy(["StArTs-WiTh", "$Content-TYPE", "image/"], {"ACL": "private"}))
    fields = {"key": "in/a", "bucket": BUCKET, "content-type": "image/png, image/gif", "acl": "private"}
    found.check(fields, now=NOW)
    with pytest.raises(WireError, match="Policy Condition failed"):
        found.check({**fields, "content-type": "image/png, text/html"}, now=NOW)
