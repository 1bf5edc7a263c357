"""Signatures of API requests, changed on their way.

What must hold: the verifier raises nothing but WireError with a status of 400 or 403; what it accepts means what its
sender has signed; no answer holds a key; and the same change is not accepted a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, unquote, urlsplit

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.control.wire.messages import HttpRequest
from clary.control.wire.models import Operation, Protocol, service
from clary.control.wire.signatures import SignatureVerifier, is_changing
from fuzz.byte_reader import ByteReader
from fuzz.findings import found, require
from fuzz.signed_requests import KEY, NOW, OTHER_KEY, SECRETS, SKEW_S, Sent, collapsed, mutate
from fuzz.targets import Run

_METHODS = ("POST", "GET", "PUT")
_PATHS = ("/", "", "/a/b", "/a//b", "/a/../b", "/a%20b", "/a b", "/%C3%A9", "/*+~")
_QUERIES = ("", "Action=GetRole&RoleName=a", "a=1&b=2", "b=%20&a=%2B", "a", "a=", "a=1&a=2", "a=*&b=~")
_NAMES = (
    "host",
    "content-type",
    "x-amz-target",
    "x-amz-date",
    "date",
    "x-amz-content-sha256",
    "authorization",
    "content-encoding",
    "x-amz-meta-a",
    "user-agent",
)
_WORDS = (
    "127.0.0.1:4570",
    "application/x-amz-json-1.1",
    "application/x-www-form-urlencoded",
    "SageMaker.CreateTrainingJob",
    "SageMaker.DeleteTrainingJob",
    "20260131T120000Z",
    "20260131T999999Z",
    "Sat, 31 Jan 2026 12:00:00 GMT",
    "Sat, 31 Jan 2026 12:00:00 -0000",
    "Mon, 01 Jan 0001 00:00:00 +2359",
    sigv4.EMPTY_HASH,
    sigv4.UNSIGNED_PAYLOAD,
    "X-Amz-Expires=604800",
    "X-Amz-SignedHeaders=host",
    "X-Amz-Date=20260131T120000Z",
    "x-amz-signature=" + "0" * 64,
    "X-Amz-Algorithm=AWS4-HMAC-SHA256",
    "a  b",
    "",
)
_BODIES = (b"", b"{}", b'{"TrainingJobName": "a"}', b"Action=GetRole&RoleName=a")
# Not the content type: routing binds the protocol to the target, the path and the body, which are signed.
_MEANINGFUL = ("x-amz-target", "content-encoding")


class _Clock:
    """A clock that stands at the time of the signatures."""

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


@contextmanager
def open_target() -> Iterator[Run]:
    """Yield the function that takes an input."""
    operations = (
        None,
        service("sagemaker").operation("CreateTrainingJob", Protocol.JSON_1_1),
        service("sagemaker").operation("ListTrainingJobs", Protocol.JSON_1_1),
        service("iam").operation("GetRole", Protocol.QUERY),
        service("cloudwatch").operation("PutMetricData", Protocol.QUERY),
    )
    yield lambda data: _run(data, operations)


def _run(data: bytes, operations: tuple[Operation | None, ...]) -> None:
    reader = ByteReader(data)
    operation = reader.choose(operations)
    signed = _signed(reader, operation)
    changed = mutate(reader, signed, names=_NAMES, words=_WORDS)
    verifier = SignatureVerifier(SECRETS.get, _Clock(), skew_s=SKEW_S)
    request = HttpRequest(changed.method, changed.raw_path, changed.query, changed.headers, changed.body)
    accepted = _verify(verifier, request, operation)
    if accepted is None:
        require(changed != signed, "what was signed is refused", request=request)
        return
    covered = _signed_names(signed)
    before, after = meaning(signed, covered), meaning(changed, covered)
    require(before == after, "another request than the signed one is accepted", signed=before, accepted=after)
    if operation is not None and is_changing(operation.name):
        require(_verify(verifier, request, operation) is None, "a request is accepted twice", request=request)


def _verify(
    verifier: SignatureVerifier, request: HttpRequest, operation: Operation | None
) -> sigv4.Authorization | None:
    try:
        return verifier.verify(request, operation=operation)
    except WireError as error:
        require(error.http_status in (400, 403), "a refusal has another status", status=error.http_status)
        if any(secret in error.message for secret in SECRETS.values()):
            found("a refusal holds a key", message=error.message)
        return None


def _signed(reader: ByteReader, operation: Operation | None) -> Sent:
    method, path, query = reader.choose(_METHODS), reader.choose(_PATHS), reader.choose(_QUERIES)
    body = reader.choose(_BODIES)
    headers = {"host": "127.0.0.1:4570"}
    if reader.chance():
        headers["content-type"] = "application/x-amz-json-1.1"
    if reader.chance():
        headers["x-amz-target"] = "SageMaker.CreateTrainingJob"
    scope = operation.service.signing_name if operation is not None else reader.choose(("sagemaker", "sts"))
    key = reader.choose((KEY, OTHER_KEY))
    at = NOW + timedelta(seconds=reader.choose((0, 0, -299, 299)))
    if not reader.chance(4):
        added = sigv4.sign(
            method, path, query, headers, sigv4.payload_hash(body), credentials=key, region="r", service=scope, now=at
        )
        if reader.chance(4):
            del added["x-amz-content-sha256"]
            added = _signed_without_hash(method, path, query, headers, body, scope, at, key)
        return Sent(method, path, query, tuple((headers | added).items()), body)
    # Clients that presign requests of the API (EKS does so with STS) send no body.
    url = f"http://127.0.0.1:4570{path or '/'}" + (f"?{query}" if query else "")
    shown = sigv4.presign_url(
        method, url, credentials=key, region="r", now=at, expires_s=600, service=scope, headers=headers
    )
    parts = urlsplit(shown)
    return Sent(method, parts.path, parts.query, tuple(headers.items()))


def _signed_without_hash(
    method: str, path: str, query: str, headers: dict[str, str], body: bytes, scope: str, at: datetime, key: object
) -> dict[str, str]:
    """Sign as botocore does for services other than S3: the body's hash is signed, and no header names it."""
    assert hasattr(key, "secret_access_key")
    amz_date = at.astimezone(UTC).strftime(sigv4.DATE_FORMAT)
    pairs = [*headers.items(), ("x-amz-date", amz_date)]
    names = tuple(sorted(name for name, _ in pairs))
    canonical = sigv4.canonical_request(
        sigv4.SigningRequest(method, path, query, pairs), names, payload_hash=sigv4.payload_hash(body), service=scope
    )
    full_scope = f"{amz_date[:8]}/r/{scope}/{sigv4.TERMINATOR}"
    signing = sigv4.signing_key(key.secret_access_key, date=amz_date[:8], region="r", service=scope)
    text = sigv4.string_to_sign(canonical, amz_date=amz_date, scope=full_scope)
    return {
        "x-amz-date": amz_date,
        "authorization": f"{sigv4.ALGORITHM} Credential={key.access_key_id}/{full_scope}, "  # type: ignore[attr-defined]
        f"SignedHeaders={';'.join(names)}, Signature={sigv4.signature(signing, text)}",
    }


def _signed_names(sent: Sent) -> frozenset[str]:
    authorization = sent.header("authorization")
    if authorization:
        return frozenset(sigv4.parse_authorization(authorization).signed_headers)
    presigned = sigv4.parse_presigned(sent.query)
    assert presigned is not None, "what was signed has a signature"
    return frozenset(presigned.authorization.signed_headers)


def meaning(sent: Sent, covered: frozenset[str]) -> dict[str, object]:
    """Return all that the service acts upon, in one spelling."""
    headers = HttpRequest(sent.method, sent.raw_path, sent.query, sent.headers).lowered_headers
    pairs = parse_qsl(sent.query, keep_blank_values=True, errors="surrogateescape")
    return {
        "method": sent.method.upper(),
        "path": _plain_path(sent.raw_path),
        "query": sorted(
            (_octets(name), _octets(value)) for name, value in pairs if not name.lower().startswith("x-amz-signature")
        ),
        "body": sent.body,
        "headers": {name: collapsed(headers.get(name, "")) for name in {*covered, *_MEANINGFUL}},
    }


def _plain_path(raw_path: str) -> tuple[bytes, ...]:
    """Return the parts of a path, `.`, `..` and empty ones resolved as services other than S3 do."""
    kept: list[bytes] = []
    for part in (_octets(unquote(part, errors="surrogateescape")) for part in raw_path.split("/")):
        if part == b"..":
            del kept[-1:]
        elif part not in (b"", b"."):
            kept.append(part)
    return (*kept, b"/" if kept and raw_path.endswith("/") else b"")


def _octets(text: str) -> bytes:
    """Return text as it is on the wire: the same byte may come as it is or as an escape."""
    return text.encode("utf-8", "surrogateescape")
