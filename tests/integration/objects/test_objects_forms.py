"""Browser uploads with a real SeaweedFS: forms signed by boto3, sent as browsers send them."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from objects_service import BUCKET, MIB, Answer, Service, ServiceThread, keys_under, read, send_raw

BOUNDARY = "----WebKitFormBoundary7MA4YWxkTrZu0gW"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    thread = ServiceThread(tmp_path_factory.mktemp("home"))
    yield thread.service
    thread.close()


@pytest.fixture(params=["s3v4", None], ids=["version 4", "boto3's choice"])
def s3(request: pytest.FixtureRequest, service: Service) -> Iterator[Any]:
    client = service.client(signature_version=request.param)  # by default boto3 signs forms by version 2
    yield client
    client.close()


def body_of(fields: dict[str, str], content: bytes, *, file_name: str = "n.txt", after: str = "") -> bytes:
    lines = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields.items()]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{file_name}"\r\n'
    head += "Content-Type: text/plain\r\n\r\n"
    return "".join([*lines, head]).encode() + content + f"\r\n{after}--{BOUNDARY}--\r\n".encode()


def post(service: Service, fields: dict[str, str], content: bytes, path: str = f"/{BUCKET}", **options: Any) -> Answer:
    headers = {
        "Host": options.pop("host", urlsplit(service.http_url).netloc),
        "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
    }
    return send_raw(service, "POST", path, headers, body_of(fields, content, **options))


def test_a_form_stores_its_file_with_type_and_metadata(service: Service, s3: Any) -> None:
    named = {"Content-Type": "text/css", "x-amz-meta-step": "7", "x-amz-server-side-encryption": "aws:kms"}
    conditions = [{name: value} for name, value in named.items()]
    made = s3.generate_presigned_post(BUCKET, "form/${filename}", Fields=named, Conditions=conditions)
    assert made["url"] == f"{service.http_url}/{BUCKET}"
    answer = post(service, made["fields"], b"hello", file_name="C:\\docs\\a b.css")
    assert (answer.status, answer.body) == (204, b"")
    head = s3.head_object(Bucket=BUCKET, Key="form/a b.css")
    assert (head["ContentType"], head["Metadata"], head["ETag"]) == ("text/css", {"step": "7"}, answer.headers["etag"])
    assert head["ServerSideEncryption"] == answer.headers["x-amz-server-side-encryption"] == "aws:kms"
    assert read(s3, "form/a b.css") == b"hello"


@pytest.mark.parametrize("size", [0, 100_000, 3 * MIB + 17])
def test_a_file_of_any_size_survives_the_round_trip(service: Service, s3: Any, size: int) -> None:
    content = os.urandom(size)
    key = f"sizes/{size}"
    made = s3.generate_presigned_post(BUCKET, key, Conditions=[["content-length-range", size, size]])
    button = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="submit"\r\n\r\nGo\r\n'
    assert post(service, made["fields"], content, after=button).status == 204
    assert read(s3, key) == content


@pytest.mark.parametrize(("size", "code"), [(9, "EntityTooSmall"), (100_001, "EntityTooLarge")])
def test_a_file_of_a_wrong_size_is_not_stored(service: Service, s3: Any, size: int, code: str) -> None:
    made = s3.generate_presigned_post(BUCKET, "bounds/a", Conditions=[["content-length-range", 10, 100_000]])
    answer = post(service, made["fields"], b"x" * size)
    assert (answer.status, answer.code) == (400, code)
    assert keys_under(s3, "bounds/") == []


def test_the_response_has_the_status_or_redirect_of_the_form(service: Service, s3: Any) -> None:
    for name, value in {"success_action_status": "201", "success_action_redirect": "https://h.example/x?y=1"}.items():
        made = s3.generate_presigned_post(BUCKET, "asked/a", Fields={name: value}, Conditions=[{name: value}])
        answer = post(service, made["fields"], b"hello")
        if name == "success_action_status":
            assert answer.status == 201
            assert f"<Location>{service.http_url}/{BUCKET}/asked/a</Location>".encode() in answer.body
            assert b"<Key>asked/a</Key>" in answer.body
        else:
            assert answer.status == 303
            assert answer.headers["location"].startswith(f"{value}&bucket={BUCKET}&key=asked%2Fa&etag=")


def test_a_form_reaches_a_bucket_named_in_the_host(service: Service, s3: Any) -> None:
    made = s3.generate_presigned_post(BUCKET, "hosts/a")
    port = urlsplit(service.http_url).port
    answer = post(service, made["fields"], b"hello", "/", host=f"{BUCKET}.localhost:{port}")
    assert answer.status == 204
    assert answer.headers["location"] == f"http://{BUCKET}.localhost:{port}/hosts/a"
    assert read(s3, "hosts/a") == b"hello"


def test_an_unsigned_form_is_refused_before_its_file_is_sent(service: Service) -> None:
    fields = {"key": "strange/a", "policy": "e30=", "AWSAccessKeyId": "CLARYUSER", "signature": "AAAA"}
    head = body_of(fields, b"")[: -len(f"\r\n--{BOUNDARY}--\r\n")]
    connection = http.client.HTTPConnection(urlsplit(service.http_url).netloc, timeout=20)
    try:
        connection.putrequest("POST", f"/{BUCKET}")
        connection.putheader("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
        connection.putheader("Content-Length", str(5 * 1024**3))
        connection.endheaders(head)
        response = connection.getresponse()  # although five gigabytes have not been sent yet
        assert (response.status, b"SignatureDoesNotMatch" in response.read()) == (403, True)
    finally:
        connection.close()


def test_a_key_in_the_path_of_a_form_is_refused(service: Service, s3: Any) -> None:
    made = s3.generate_presigned_post(BUCKET, "path/a")
    assert post(service, made["fields"], b"hello", f"/{BUCKET}/path/b").code == "MethodNotAllowed"
    assert json.dumps(keys_under(s3, "path/")) == "[]"
