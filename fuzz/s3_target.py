"""S3 requests, signed in headers or query, with plain bodies and signed chunks, changed on their way.

What must hold: nothing but WireError comes out; an accepted request asks for what was signed, by the same bucket, key
and parameters that the front would act on; a body passes whole only if it is the signed one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote, urlsplit

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.control.objects import payloads, s3_request
from clary.control.objects.authentication import V2_SUBRESOURCES, Caller, ChunkSeed, authenticate
from clary.control.objects.deletions import deletion_bodies
from clary.control.objects.s3_request import S3Request
from fuzz.byte_reader import ByteReader
from fuzz.findings import found, require
from fuzz.signed_requests import KEY, NOW, OTHER_KEY, SECRETS, SKEW_S, Sent, collapsed, mutate
from fuzz.targets import Run

REGION = "us-west-2"
_METHODS = ("GET", "PUT", "POST", "HEAD", "DELETE")
_HOSTS = ("127.0.0.1:4570", "other-bucket.s3.us-west-2.amazonaws.com", "bucket.s3.amazonaws.com:443")
_PATHS = (
    "/bucket/key",
    "/bucket/a%20b/c",
    "/bucket",
    "/",
    "/bucket/a//b",
    "/bucket/%C3%A9",
    "/bucket/a*+~",
    "/bucket/a/",
)
_QUERIES = ("", "uploads", "list-type=2&prefix=a%2Fb", "uploadId=u&partNumber=1", "delete", "versionId=a+b", "acl&x=1")
_NAMES = (
    "host",
    "x-amz-date",
    "x-amz-content-sha256",
    "x-amz-copy-source",
    "x-amz-meta-a",
    "x-amz-decoded-content-length",
    "authorization",
    "content-type",
    "content-md5",
    "date",
    "content-encoding",
)
_WORDS = (
    *_HOSTS,
    sigv4.EMPTY_HASH,
    sigv4.UNSIGNED_PAYLOAD,
    sigv4.STREAMING_PAYLOAD,
    "bucket/key",
    "/other-bucket/a%2Fb?versionId=null",
    "20260131T120000Z",
    "9" * 5000,
    "a  b",
    "AWS AKIDEXAMPLE:AAAA",
    "Expires=99999999999",
    "AWSAccessKeyId=AKIDEXAMPLE",
    "Signature=AAAA",
    "acl",
    "prefix=b",
    "X-Amz-Expires=1",
    "x-amz-acl=public-read",
    "response-content-type=text/html",
)
_CHUNK_HEADERS = (
    b"0;chunk-signature=",
    b"\r\n",
    b"1;chunk-signature=",
    b"+1;chunk-signature=",
    b"1_0;",
    b"x-amz-a:b\r\n",
)
_DELETE = (
    b"<Delete><Object><Key>",
    b"</Key></Object></Delete>",
    b"<!DOCTYPE a [<!ENTITY b 'c'>]>",
    b"a/../b",
    b"&#0;",
    b"\xff",
    b"<x:Key>",
    b"",
)
_HEADER, _PRESIGNED, _VERSION_2 = range(3)


@contextmanager
def open_target() -> Iterator[Run]:
    """Yield the function that takes an input."""
    with asyncio.Runner() as runner:
        yield lambda data: _run(data, runner)


def _run(data: bytes, runner: asyncio.Runner) -> None:
    reader = ByteReader(data)
    kind = reader.below(5)
    if kind == 3:
        _run_chunks(reader, runner)
    elif kind == 4:
        _run_bodies(reader, runner)
    else:
        _run_request(reader, kind)


def _run_request(reader: ByteReader, kind: int) -> None:
    signed = _signed(reader, kind)
    changed = mutate(reader, signed, names=_NAMES, words=_WORDS)
    caller = check(changed)
    if caller is None:
        require(changed != signed, "what was signed is refused", request=signed)
        return
    way = _way_of(changed)
    require(way == kind, "a request is accepted by another kind of signature than it has", request=changed)
    if kind == _VERSION_2:
        before, after = _meaning_of_version_2(signed), _meaning_of_version_2(changed)
    else:
        covered = _covered(signed)
        before, after = _meaning(signed, covered), _meaning(changed, covered)
        claimed = signed.header("x-amz-content-sha256") or sigv4.UNSIGNED_PAYLOAD
        require(caller.payload_hash == claimed, "the body's hash was changed", caller=caller)
    # What the front refuses in the next step harms nobody, whoever has signed it.
    is_same = before == after or isinstance(after["asked"], str)
    require(is_same, "another request than the signed one is accepted", signed=before, accepted=after)


def check(sent: Sent) -> Caller | None:
    """Return the caller of a request, as the front authenticates it; None for a refusal."""
    try:
        caller = authenticate(
            sigv4.SigningRequest(sent.method, sent.raw_path, sent.query, sent.headers),
            find_secret=SECRETS.get,
            now=NOW,
            skew_s=SKEW_S,
            host_bucket=s3_request.bucket_of_host(sent.header("host")),
        )
    except WireError as error:
        require(error.http_status in (400, 403), "a refusal has another status", status=error.http_status)
        if any(secret in error.message for secret in SECRETS.values()):
            found("a refusal holds a key", message=error.message)
        return None
    return caller


def _signed(reader: ByteReader, kind: int) -> Sent:
    method, path, query = reader.choose(_METHODS), reader.choose(_PATHS), reader.choose(_QUERIES)
    headers = {"host": reader.choose(_HOSTS)}
    if reader.chance():
        headers["x-amz-meta-a"] = reader.choose(("1", "a b", "\u00e9"))
    if reader.chance():
        headers["x-amz-copy-source"] = "bucket/key"
    at = NOW + timedelta(seconds=reader.choose((0, 0, -299, 299)))
    key = reader.choose((KEY, OTHER_KEY))
    if kind == _HEADER:
        content = reader.choose((sigv4.EMPTY_HASH, sigv4.UNSIGNED_PAYLOAD, sigv4.STREAMING_PAYLOAD))
        added = sigv4.sign(method, path, query, headers, content, credentials=key, region=REGION, service="s3", now=at)
        return Sent(method, path, query, tuple((headers | added).items()))
    if kind == _PRESIGNED:
        url = f"http://{headers['host']}{path}" + (f"?{query}" if query else "")
        shown = sigv4.presign_url(method, url, credentials=key, region=REGION, now=at, expires_s=600, headers=headers)
        parts = urlsplit(shown)
        return Sent(method, parts.path, parts.query, tuple(headers.items()))
    return _signed_by_version_2(Sent(method, path, query, tuple(headers.items())))


def _signed_by_version_2(sent: Sent) -> Sent:
    """Sign as S3's documentation of version 2 says, with the bucket of a host that names one in the resource."""
    expires = str(int(NOW.timestamp()) + 600)
    bucket = s3_request.bucket_of_host(sent.header("host"))
    names = [part for part in sent.query.split("&") if part.partition("=")[0] in V2_SUBRESOURCES]
    # Values of these parameters are signed as they are meant, not as they are written.
    names = sorted(part.replace("%20", " ") for part in names)
    resource = (f"/{bucket}" if bucket else "") + sent.raw_path + ("?" + "&".join(names) if names else "")
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(sent.headers) if name.startswith("x-amz-"))
    text = f"{sent.method}\n\n\n{expires}\n{lines}{resource}"
    digest = hmac.digest(KEY.secret_access_key.encode(), text.encode(), "sha1")
    added = f"AWSAccessKeyId={KEY.access_key_id}&Expires={expires}&Signature={quote(base64.b64encode(digest), safe='')}"
    return replace(sent, query=f"{sent.query}&{added}" if sent.query else added)


def _way_of(sent: Sent) -> int:
    if any(name.lower() == "authorization" for name, _ in sent.headers):
        return _HEADER
    return _PRESIGNED if sigv4.parse_presigned(sent.query) is not None else _VERSION_2


def _covered(sent: Sent) -> frozenset[str]:
    authorization = sent.header("authorization")
    if authorization:
        return frozenset(sigv4.parse_authorization(authorization).signed_headers)
    presigned = sigv4.parse_presigned(sent.query)
    assert presigned is not None, "what was signed has a signature"
    return frozenset(presigned.authorization.signed_headers)


def _asked(sent: Sent) -> S3Request | str:
    """Return the request as the front parses it, or the code of its refusal."""
    bucket = s3_request.bucket_of_host(sent.header("host"))
    try:
        return s3_request.parse_request(
            sent.method, f"/{bucket}{sent.raw_path}" if bucket else sent.raw_path, sent.query
        )
    except WireError as error:
        return error.code


def _meaning(sent: Sent, covered: frozenset[str]) -> dict[str, object]:
    asked = _asked(sent)
    values: dict[str, list[str]] = {}
    for name, value in sent.headers:
        values.setdefault(name.lower(), []).append(collapsed(value))
    names = {name for name in values if name.startswith("x-amz-")} | covered
    return {
        "asked": asked
        if isinstance(asked, str)
        else replace(asked, query=tuple(sorted(asked.query)), method=asked.method.upper()),
        "headers": {name: ",".join(values.get(name, [])) for name in names},
    }


def _meaning_of_version_2(sent: Sent) -> dict[str, object]:
    """Version 2 leaves parameters unsigned that only filter; S3 does not sign them either."""
    asked = _asked(sent)
    if not isinstance(asked, str):
        kept = tuple(sorted(pair for pair in asked.query if pair[0] in V2_SUBRESOURCES))
        asked = replace(asked, query=kept)
    # As header or as parameter, which is how signers move them.
    values = {name.lower(): value.strip() for name, value in sent.headers if name.lower().startswith("x-amz-")}
    return {"asked": asked, "headers": values}


def _run_chunks(reader: ByteReader, runner: asyncio.Runner) -> None:
    """Frame data as signed chunks, change the frame, and check that only the signed data passes."""
    data = reader.chunk()
    with_trailer = reader.chance()
    caller = check(_signed(ByteReader(b""), _HEADER))
    assert caller is not None, "the request is good"
    assert caller.seed is not None, "it was signed in its headers"
    seed = caller.seed
    framed = _framed(data, seed, size=1 + reader.below(40), trailer="x-amz-checksum-crc32:AAAA" if with_trailer else "")
    body = framed
    for _ in range(reader.below(4)):
        at = reader.below(len(body) + 1)
        inserted = reader.choose(_CHUNK_HEADERS) if reader.chance() else reader.chunk()
        body = body[:at] + inserted + body[at + reader.byte() :]
    length = len(data) if not reader.chance(8) else reader.byte()
    pieces = payloads.unframe_signed(
        _pieces(body, 1 + reader.below(300)), seed=seed, decoded_length=length, with_trailer=with_trailer
    )
    passed = runner.run(_collect(pieces))
    if passed is None:
        require(body != framed or length != len(data), "signed chunks are refused", body=body)
    elif with_trailer:
        require(_unframed(passed) == (data, b"x-amz-checksum-crc32:AAAA\r\n\r\n"), "another body passes", passed=passed)
    else:
        require(passed == data, "another body than the signed one passes", passed=passed, signed=data)


def _run_bodies(reader: ByteReader, runner: asyncio.Runner) -> None:
    """Check bodies against their hash, and the parsers of DeleteObjects, copy sources and targets."""
    data = reader.chunk()
    signed_hash = hashlib.sha256(data).hexdigest()
    body = data if reader.chance() else reader.chunk()
    passed = runner.run(_collect(payloads.check_sha256(_pieces(body, 1 + reader.byte()), signed_hash)))
    require(passed == (data if body == data else None), "another body than the signed one passes", passed=passed)
    document = b"".join(reader.choose(_DELETE) if reader.chance() else reader.chunk() for _ in range(reader.below(8)))
    _quietly(lambda: _check_deletion(document))
    source = reader.word(("bucket/key", "/bucket/a%2Fb", "bucket", "%zz/", "b/\udcff"))
    _quietly(lambda: s3_request.check_copy_source(source))
    target = reader.word(("/bucket/key?acl", "http://h/bucket", "http://[", "*", "//"))
    try:
        path, query = s3_request.split_target(target)
    except WireError:
        return
    asked = _asked(Sent(reader.choose(_METHODS), path, query, (("host", reader.word(_HOSTS)),)))
    if not isinstance(asked, str):
        require(asked.path.isascii(), "a path cannot be signed", asked=asked)


def _check_deletion(document: bytes) -> None:
    """Check that the store gets exactly the keys that were read and checked."""
    deletion = deletion_bodies.read_deletion(document)
    _, body = deletion_bodies.written(deletion, [], aliases_keys=False)
    keys = [element.text for element in ET.fromstring(body).iter("Key")]
    require(keys == deletion.keys, "the store deletes other keys", body=body, keys=deletion.keys)


def _quietly(act: object) -> None:
    assert callable(act)
    try:
        act()
    except WireError as error:
        require(error.http_status in (400, 404), "a refusal has another status", status=error.http_status)


def _framed(data: bytes, seed: ChunkSeed, *, size: int, trailer: str) -> bytes:
    previous, body = seed.signature, b""
    for chunk in [*(data[at : at + size] for at in range(0, len(data), size)), b""]:
        previous = sigv4.chunk_signature(
            seed.key,
            previous=previous,
            chunk_hash=hashlib.sha256(chunk).hexdigest(),
            amz_date=seed.amz_date,
            scope=seed.scope,
        )
        body += b"%x;chunk-signature=%b\r\n" % (len(chunk), previous.encode()) + (chunk + b"\r\n" if chunk else b"")
    if trailer:
        signature = sigv4.trailer_signature(
            seed.key,
            previous=previous,
            trailer_hash=hashlib.sha256(f"{trailer}\n".encode()).hexdigest(),
            amz_date=seed.amz_date,
            scope=seed.scope,
        )
        body += f"{trailer}\r\nx-amz-trailer-signature:{signature}\r\n".encode()
    return body + b"\r\n"


def _unframed(body: bytes) -> tuple[bytes, bytes]:
    data = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return data, body
        data, body = data + body[: int(size, 16)], body[int(size, 16) + 2 :]


async def _pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def _collect(pieces: AsyncIterator[bytes]) -> bytes | None:
    """Return the bytes that passed, or None if the end was withheld."""
    try:
        return b"".join([piece async for piece in pieces])
    except WireError:
        return None
