"""Requests signed by hand, sent as bytes."""

from __future__ import annotations

from urllib.parse import urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials


def signed_bytes(
    service,
    body,
    *,
    target="SageMaker.ListTrainingJobs",
    service_name="sagemaker",
    method="POST",
    path="/",
    content_type="application/x-amz-json-1.1",
    at=None,
):
    """Return a whole signed request as bytes; `at` is the signing time, now if None."""
    environment = service.environment
    url = environment["AWS_ENDPOINT_URL"] + path
    headers = {"Host": urlsplit(url).netloc, "Content-Type": content_type}
    if service_name == "sagemaker":
        headers["X-Amz-Target"] = target
    else:
        headers["X-Amz-Content-SHA256"] = "UNSIGNED-PAYLOAD"
    request = AWSRequest(method=method, url=url, data=body, headers=headers)
    credentials = Credentials(environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"])
    signer = SigV4Auth(credentials, service_name, environment["AWS_REGION"])
    if at is None:
        signer.add_auth(request)
    else:
        request.context["timestamp"] = at.strftime("%Y%m%dT%H%M%SZ")
        signer._modify_request_before_signing(request)
        canonical = signer.canonical_request(request)
        signature = signer.signature(signer.string_to_sign(request, canonical), request)
        signer._inject_signature_to_request(request, signature)
    lines = [f"{method} {path} HTTP/1.1", *[f"{name}: {value}" for name, value in request.headers.items()]]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def status_of(answer):
    return int(answer.split(b" ", 2)[1])
