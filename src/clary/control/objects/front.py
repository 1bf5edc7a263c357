"""S3 in front of the object store: verifies the caller, changes what the store refuses, signs again, streams through.

Where: `server.listener` routes S3 requests here; the store (embedded or any endpoint) does everything else. It exists
for three reasons: one port for all services; SDKs send `x-amz-server-side-encryption: aws:kms`, which SeaweedFS
answers with 500 although the header is signed; every job has a key of its own, which the store does not know.
Bodies flow in both directions as they come, with back-pressure; [Note: the last piece] in `payloads`.
"""

from __future__ import annotations

import asyncio
import http
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from xml.sax.saxutils import escape

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from clary.contract import sigv4
from clary.contract.clock import Clock
from clary.contract.errors import WireError
from clary.contract.launch_plan import Endpoint
from clary.control.objects import payloads, s3_request
from clary.control.objects.authentication import Caller, FindSecret, authenticate
from clary.control.objects.deletion_limit import DeletionLimit
from clary.control.objects.permit import Permit
from clary.control.objects.s3_request import S3Request
from clary.control.objects.store_client import (
    CONNECT_TIMEOUT_S,
    encode_query,
    open_session,
    sign_for_store,
    store_url,
)
from clary.control.permissions.grants import Grants

REQUEST_ID = "clary_request_id"  # attribute in which the listener leaves the id of a request
STORE_TIMEOUT_S = 300.0  # without a byte from the store; completing a large multipart upload is slow
MAX_LISTING_BYTES = 8 * 1024 * 1024  # 1000 keys of 1 KiB, escaped and with all that is said of each
SMALL_BODY_BYTES = 64 * 1024  # up to this a body is verified first and sent in one piece
RETRY_AFTER_S = 1

MAX_LENGTH_DIGITS = 18  # of a number of bytes

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
# Hop-by-hop headers, what is signed anew, and what is answered here.
_NOT_FORWARDED = frozenset(
    {
        "host",
        "authorization",
        "connection",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "date",
        "content-length",
        "x-amz-date",
        "x-amz-content-sha256",
        "x-amz-security-token",
        "x-amz-expected-bucket-owner",
        "x-amz-source-expected-bucket-owner",
    }
)
_NOT_RETURNED = frozenset(["connection", "keep-alive", "transfer-encoding", "trailer", "upgrade", "date", "server"])
_OWNER_HEADERS = ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner")
_ENCRYPTION_PREFIX = "x-amz-server-side-encryption"
_CUSTOMER_KEY = re.compile(r"x-amz-(copy-source-)?server-side-encryption-customer-.*")
# SeaweedFS answers reads of `a/` with an empty object if `a/b` exists; a stored `a/` has no `-0` at the end.
_IMPLIED_FOLDER_ETAG = '"d41d8cd98f00b204e9800998ecf8427e-0"'

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Outgoing:
    """What is sent to the store."""

    headers: list[tuple[str, str]]
    payload_hash: str
    data: AsyncIterator[bytes] | bytes | None
    expect_continue: bool = False


class S3Front:
    """Admits S3 requests of callers that `find_secret` knows and passes them to one store.

    Args:
        store_endpoint: the store and its own key.
        find_secret: secret access key of an access key id, None if unknown; called for every request.
        account_id: the account that owns every bucket, twelve digits.
        clock: time of day for signatures.
        skew_s: how far the time of a request may be off.
        forward_encryption: pass x-amz-server-side-encryption headers on. False for the embedded store, which has no
            KMS: there they are dropped, nothing is encrypted, and no answer says it was.
        bucket_of_own_host: bucket in front of one of the service's own names, None if a Host has none.
        find_grants: what a key opens; None for everything. Called for every request.
        why_full: says that the store's disk is full; empty if it is not. Asked when the store fails.
    """

    def __init__(
        self,
        store_endpoint: Endpoint,
        find_secret: FindSecret,
        *,
        account_id: str,
        clock: Clock,
        skew_s: float,
        forward_encryption: bool = False,
        bucket_of_own_host: Callable[[str], str | None] = lambda _host: None,
        find_grants: Callable[[str], Grants | None] = lambda _: None,
        why_full: Callable[[], str] = lambda: "",
    ) -> None:
        self._store = store_endpoint
        self._find_secret = find_secret
        self._account_id = account_id
        self._clock = clock
        self._skew_s = skew_s
        self._forward_encryption = forward_encryption
        self._bucket_of_own_host = bucket_of_own_host
        self._deletions = DeletionLimit()
        self._find_grants = find_grants
        self._why_full = why_full
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the connections' pool to the store; the store need not answer yet."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=STORE_TIMEOUT_S)
        self._session = open_session(timeout)

    async def close(self) -> None:
        """Close all connections to the store; requests under way break off."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one S3 request; refusals are answers too, in S3's XML shape.

        The bucket stands in the path, or in the Host: before an AWS name of S3 (old clients behind the proxy, which
        know no endpoint variable), or before a name of the service's own. Nothing is read of the body of a refused
        request.
        """
        body = _IncomingBody(request)
        resource = request.raw_path.partition("?")[0]
        try:
            raw_path, raw_query = s3_request.split_target(request.raw_path)
            host = request.headers.get("Host", "")
            bucket = s3_request.bucket_of_host(host) or self._bucket_of_own_host(host)
            caller = self._authenticate(request, raw_path, raw_query, host_bucket=bucket)
            asked = s3_request.parse_request(request.method, f"/{bucket}{raw_path}" if bucket else raw_path, raw_query)
            resource = asked.resource
            permit = Permit(self._find_grants(caller.access_key_id), request, asked)
            with self._deletions.entered(caller.access_key_id) if asked.is_delete_objects else nullcontext():
                outgoing = await self._translate(request, asked, caller, body, permit)
                return await self._exchange(request, asked, outgoing, body, permit)
        except WireError as error:
            return _error_response(request, body.error or error, resource)

    def _authenticate(
        self, request: web.BaseRequest, raw_path: str, raw_query: str, *, host_bucket: str | None
    ) -> Caller:
        signing = sigv4.SigningRequest(request.method, raw_path, raw_query, list(request.headers.items()))
        return authenticate(
            signing,
            find_secret=self._find_secret,
            now=self._clock.now(),
            skew_s=self._skew_s,
            host_bucket=host_bucket,
        )

    async def _translate(
        self, request: web.BaseRequest, asked: S3Request, caller: Caller, body: _IncomingBody, permit: Permit
    ) -> _Outgoing:
        headers = permit.with_clear_source(self._translate_headers(request, asked))
        by_name = {name.lower(): value for name, value in headers}
        copy_source = by_name.get("x-amz-copy-source")
        if copy_source is not None:
            s3_request.check_copy_source(copy_source)
        length = _content_length(request, by_name)
        if asked.method == "PUT" and asked.key.endswith("/") and (copy_source is not None or length != 0):
            raise WireError(
                "InvalidArgument",
                f"Keys that end in '/' can not hold content in this store: {asked.key[:200]!r}. Choose another key.",
            )
        outgoing = await _choose_body(request, headers, caller, body)
        return await _look_at_deleted_keys(outgoing, permit) if asked.is_delete_objects else outgoing

    def _translate_headers(self, request: web.BaseRequest, asked: S3Request) -> list[tuple[str, str]]:
        headers = [(name.lower(), value) for name, value in request.headers.items()]
        # Signers of presigned URLs may move x-amz-* headers into the query.
        headers.extend((name.lower(), value) for name, value in asked.query if name.lower().startswith("x-amz-"))
        kept = []
        for name, value in headers:
            if name in _OWNER_HEADERS and value != self._account_id:
                raise WireError(
                    "AccessDenied",
                    f"Access Denied: {name} is {value[:20]!r}, but every bucket here belongs to {self._account_id!r}.",
                    http_status=403,
                )
            if _CUSTOMER_KEY.fullmatch(name):
                raise WireError(
                    "NotImplemented",
                    "Encryption with keys of the customer (SSE-C) is not implemented: send the object without "
                    "x-amz-server-side-encryption-customer-* headers.",
                    http_status=501,
                )
            if name in _NOT_FORWARDED or (name.startswith(_ENCRYPTION_PREFIX) and not self._forward_encryption):
                continue
            if not _is_sendable(value):
                raise WireError("InvalidArgument", f"The header {name} holds bytes that are not UTF-8 text.")
            kept.append((name, value))
        return kept

    async def _exchange(
        self, request: web.BaseRequest, asked: S3Request, outgoing: _Outgoing, body: _IncomingBody, permit: Permit
    ) -> web.StreamResponse:
        assert self._session is not None, "start() has not been called"
        query = encode_query([(name, value) for name, value in asked.query if not name.lower().startswith("x-amz-")])
        headers = sign_for_store(
            self._store, asked.method, asked.path, query, outgoing.headers, outgoing.payload_hash, self._clock.now()
        )
        try:
            answer = await self._session.request(
                asked.method,
                store_url(self._store, asked.path, query),
                headers=headers,
                data=outgoing.data,
                expect100=outgoing.expect_continue,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if body.error is not None:
                raise body.error from error
            raise WireError(
                "ServiceUnavailable",
                f"The object store does not answer ({type(error).__name__}). Please try again.",
                http_status=503,
            ) from error
        try:
            if answer.status == 400 and "x-amz-request-id" not in answer.headers:
                # Not S3's answer: the store could not read what arrived. Clients send 503 again, and never 400.
                raise WireError(
                    "ServiceUnavailable",
                    "The request was damaged on its way to the object store. Please try again.",
                    http_status=503,
                )
            if answer.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR and (why := self._why_full()):
                # The store says "internal error" alone. Clients send 503 again, so that room heals what has failed.
                raise WireError("ServiceUnavailable", f"The object store did not do this: {why}.", http_status=503)
            if asked.key.endswith("/") and answer.headers.get("ETag") == _IMPLIED_FOLDER_ETAG:
                raise WireError("NoSuchKey", "The specified key does not exist.", http_status=404)
            if permit.is_filtered and answer.status == http.HTTPStatus.OK:
                return await _filtered(request, answer, permit)
            return await _relay(request, answer)
        finally:
            # A connection on which a body may still be on its way must not be used again.
            answer.close() if body.is_cut_short else answer.release()


class _IncomingBody:
    """The body of one request: read once, and the first thing that was wrong with it."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._must_continue = request.headers.get("Expect", "").lower() == "100-continue"
        self.error: WireError | None = None

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for leave to send the body."""
        return self._must_continue

    @property
    def is_cut_short(self) -> bool:
        """Whether the client has sent, or may still send, a body that nobody has read to its end."""
        return self._request.body_exists and not self._request.content.at_eof()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, after telling a waiting client to send it."""
        if self._must_continue:
            self._must_continue = False
            await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # What was written is no part of the answer, whose headers must still go out first.
            self._request.writer.output_size = 0
        async for piece in payloads.read_pieces(self._request.content):
            yield piece

    async def guarded(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass `pieces` on and keep what goes wrong: the client library reports it only as a broken connection."""
        try:
            async for piece in pieces:
                yield piece
        except WireError as error:
            self.error = error
            raise
        except (aiohttp.ClientError, web.RequestPayloadError, ConnectionError) as error:
            self.error = WireError("IncompleteBody", "The request body terminated unexpectedly.")
            raise self.error from error


async def _choose_body(
    request: web.BaseRequest, headers: list[tuple[str, str]], caller: Caller, body: _IncomingBody
) -> _Outgoing:
    """Return headers and body for the store, by what the signature says of the body."""
    payload_hash = caller.payload_hash
    is_hash = _SHA256.fullmatch(payload_hash) is not None
    if payload_hash in (sigv4.STREAMING_PAYLOAD, sigv4.STREAMING_PAYLOAD_TRAILER):
        return _unframed(headers, caller, body)
    if not (is_hash or payload_hash in (sigv4.UNSIGNED_PAYLOAD, sigv4.STREAMING_UNSIGNED_TRAILER)):
        raise WireError(
            "InvalidArgument",
            "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, "
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a valid sha256 value.",
        )
    if not request.body_exists:
        if is_hash and payload_hash.lower() != sigv4.EMPTY_HASH:
            raise payloads.sha256_mismatch()
        return _Outgoing(headers=headers, payload_hash=payload_hash, data=None)
    length = request.content_length
    if length is not None:
        headers = [*headers, ("content-length", str(length))]
    elif payload_hash != sigv4.STREAMING_UNSIGNED_TRAILER:
        raise WireError("MissingContentLength", "You must provide the Content-Length HTTP header.", http_status=411)
    pieces = body.pieces()
    if is_hash:
        pieces = payloads.check_sha256(pieces, payload_hash)
    if length is not None and length <= SMALL_BODY_BYTES:
        content = b"".join([piece async for piece in body.guarded(pieces)])
        return _Outgoing(headers=headers, payload_hash=payload_hash, data=content)
    return _Outgoing(
        headers=headers,
        payload_hash=payload_hash,
        data=body.guarded(pieces),
        expect_continue=body.expects_continue,
    )


def _unframed(headers: list[tuple[str, str]], caller: Caller, body: _IncomingBody) -> _Outgoing:
    """Take signed chunks apart; with a trailer they are framed again, as unsigned ones."""
    with_trailer = caller.payload_hash == sigv4.STREAMING_PAYLOAD_TRAILER
    length_text = next((value for name, value in headers if name == "x-amz-decoded-content-length"), "")
    if caller.seed is None:
        raise WireError("InvalidRequest", "A presigned request can not have a body of signed chunks.")
    if not _is_length(length_text):
        raise WireError(
            "MissingContentLength", "You must provide the x-amz-decoded-content-length header.", http_status=411
        )
    pieces = payloads.unframe_signed(
        body.pieces(), seed=caller.seed, decoded_length=int(length_text), with_trailer=with_trailer
    )
    if with_trailer:
        payload_hash = sigv4.STREAMING_UNSIGNED_TRAILER
    else:
        payload_hash = sigv4.UNSIGNED_PAYLOAD
        headers = [(name, _without_framing(name, value)) for name, value in headers]
        headers = [(name, value) for name, value in headers if value and name != "x-amz-decoded-content-length"]
        headers.append(("content-length", length_text))
    return _Outgoing(
        headers=headers,
        payload_hash=payload_hash,
        data=body.guarded(pieces),
        expect_continue=body.expects_continue,
    )


def _without_framing(name: str, value: str) -> str:
    """Take aws-chunked, which says how a body travelled, out of Content-Encoding; SeaweedFS keeps and returns it."""
    if name.lower() != "content-encoding":
        return value
    return ",".join(part for part in re.split(r"\s*,\s*", value) if part.lower() != "aws-chunked")


async def _look_at_deleted_keys(outgoing: _Outgoing, permit: Permit) -> _Outgoing:
    """Hold a DeleteObjects body, which is small, and check its keys before the store sees it."""
    if outgoing.payload_hash == sigv4.STREAMING_UNSIGNED_TRAILER:
        raise WireError(
            "NotImplemented",
            "DeleteObjects with trailing checksums is not implemented: send the checksum as a header.",
            http_status=501,
        )
    content = outgoing.data if isinstance(outgoing.data, bytes) else b""
    if outgoing.data is not None and not isinstance(outgoing.data, bytes):
        async for piece in outgoing.data:
            content += piece
            if len(content) > s3_request.MAX_DELETE_BYTES:
                raise WireError(
                    "MalformedXML", f"The XML you provided is longer than {s3_request.MAX_DELETE_BYTES} bytes."
                )
    # Thousands of elements take a while; other requests are answered meanwhile.
    permit.check_deleted(await asyncio.to_thread(s3_request.check_delete_objects, content))
    return _Outgoing(headers=outgoing.headers, payload_hash=outgoing.payload_hash, data=content)


async def _relay(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Send the store's answer on; if the store breaks off, so does the client's connection, never an early end."""
    headers = [(name, _without_framing(name, value)) for name, value in answer.headers.items()]
    headers = [(name, value) for name, value in headers if value and name.lower() not in _NOT_RETURNED]
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=CIMultiDict(headers))
    response.headers["X-Amzn-RequestId"] = _request_id(request)
    if request.body_exists and not request.content.at_eof():
        response.force_close()
    if "Content-Length" not in answer.headers and request.method != "HEAD" and not answer.content.at_eof():
        response.enable_chunked_encoding()
    await response.prepare(request)
    try:
        while piece := await answer.content.readany():
            await response.write(piece)
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        _log.warning("S3 %s %s broke off: %s %s", request.method, request.raw_path, type(error).__name__, error)
        if request.transport is not None:
            request.transport.abort()
    return response


async def _filtered(request: web.BaseRequest, answer: aiohttp.ClientResponse, permit: Permit) -> web.Response:
    """Send a listing on without what the caller may not see."""
    content = b""
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > MAX_LISTING_BYTES:
            raise WireError("InternalError", "The store's listing is too long to be looked at.", http_status=500)
    return web.Response(
        body=permit.filter_listing(content),
        content_type="application/xml",
        headers={"X-Amzn-RequestId": _request_id(request)},
    )


def _content_length(request: web.BaseRequest, headers: dict[str, str]) -> int | None:
    """Return the number of bytes of content, without framing; None if it is not known."""
    decoded = headers.get("x-amz-decoded-content-length", "")
    if _is_length(decoded):
        return int(decoded)
    return request.content_length if request.body_exists else 0


def _is_length(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_LENGTH_DIGITS


def _is_sendable(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _request_id(request: web.BaseRequest) -> str:
    return getattr(request, REQUEST_ID, "") or secrets.token_hex(8)


def _error_response(request: web.BaseRequest, error: WireError, resource: str) -> web.Response:
    request_id = _request_id(request)
    content = "" if request.method == "HEAD" else _error_document(error, resource, request_id)
    response = web.Response(
        status=error.http_status,
        body=content.encode("utf-8", "replace"),
        content_type="application/xml",
        headers={"x-amz-request-id": request_id, "X-Amzn-RequestId": request_id},
    )
    if error.http_status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    if request.body_exists and not request.content.at_eof():
        response.force_close()  # the rest of the body would be taken for the next request
    return response


def _error_document(error: WireError, resource: str, request_id: str) -> str:
    fields = {"Code": error.code, "Message": error.message, "Resource": resource, "RequestId": request_id}
    lines = "".join(f"<{name}>{escape(_printable(value))}</{name}>" for name, value in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{lines}</Error>'


def _printable(text: str) -> str:
    """Replace what XML 1.0 can not hold."""
    return "".join(character if character >= " " or character in "\t\n\r" else "?" for character in text)
