"""Bodies of S3 requests to the store: the choice of their form, and the headers of each form.

Where: `front` translates a verified request with `choose_body`; `payloads` checks the pieces as they are streamed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from aiohttp import web

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.control.objects import payloads
from clary.control.objects.authentication import Caller
from clary.control.objects.deletions import deletion_bodies
from clary.control.objects.encryption import Encryption
from clary.control.objects.front_answers import without_framing
from clary.control.objects.incoming_body import IncomingBody
from clary.control.objects.permits.permit import Permit

SMALL_BODY_BYTES = 64 * 1024  # largest body that is verified before it is sent, in one piece
MAX_LENGTH_DIGITS = 18  # digits of a Content-Length

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """The headers and body that are sent to the store."""

    headers: list[tuple[str, str]]
    payload_hash: str
    data: AsyncIterator[bytes] | bytes | None
    expect_continue: bool = False
    encryption: Encryption | None = None  # encryption that the request names


async def choose_body(
    request: web.BaseRequest, headers: list[tuple[str, str]], caller: Caller, body: IncomingBody
) -> Outgoing:
    """Return headers and body for the store, chosen by how the signature covers the body.

    A body of at most SMALL_BODY_BYTES that is not in signed chunks is read and checked before it is sent; any other
    body is checked while it is sent to the store.

    Args:
        request: the client's, its body unread.
        headers: headers for the store, with lower-case names, without content-length.
        caller: verified caller, whose `payload_hash` and `seed` say how the signature covers the body.
        body: body of the request; stores its first error.
    Raises: WireError InvalidArgument, InvalidRequest, MissingContentLength, XAmzContentSHA256Mismatch, IncompleteBody,
        RequestTimeout.
    """
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
        return Outgoing(headers=headers, payload_hash=payload_hash, data=None)
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
        return Outgoing(headers=headers, payload_hash=payload_hash, data=content)
    return Outgoing(
        headers=headers,
        payload_hash=payload_hash,
        data=body.guarded(pieces),
        expect_continue=body.expects_continue,
    )


def _unframed(headers: list[tuple[str, str]], caller: Caller, body: IncomingBody) -> Outgoing:
    """Unpack signed chunks; a body with a trailer is framed again, in unsigned chunks."""
    with_trailer = caller.payload_hash == sigv4.STREAMING_PAYLOAD_TRAILER
    length_text = next((value for name, value in headers if name == "x-amz-decoded-content-length"), "")
    if caller.seed is None:
        raise WireError("InvalidRequest", "A presigned request cannot have a body of signed chunks.")
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
        headers = [(name, without_framing(name, value)) for name, value in headers]
        headers = [(name, value) for name, value in headers if value and name != "x-amz-decoded-content-length"]
        headers.append(("content-length", length_text))
    return Outgoing(
        headers=headers,
        payload_hash=payload_hash,
        data=body.guarded(pieces),
        expect_continue=body.expects_continue,
    )


async def look_at_deleted_keys(
    outgoing: Outgoing, permit: Permit, *, aliases_keys: bool, turn: AbstractAsyncContextManager[None]
) -> Outgoing:
    """Read a DeleteObjects body, which is small, as a whole, check its keys and write it anew for the store.

    Args:
        outgoing: headers and body of the request.
        permit: the caller's permissions.
        aliases_keys: whether the store has other names for some keys (`stored_names`); the body then names these.
        turn: of the only body that is parsed at a time; entered once the body is here.
    Raises: WireError: NotImplemented, MalformedXML, AccessDenied; also for a key that the store cannot hold, and for a
        body that breaks off or does not match its signature.
    """
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
            if len(content) > deletion_bodies.MAX_BYTES:
                raise WireError(
                    "MalformedXML", f"The XML you provided is longer than {deletion_bodies.MAX_BYTES} bytes."
                )
    # A thread parses the elements, which may be thousands, so that other requests are answered meanwhile. Several
    # threads would slow down each other and the event loop.
    async with turn:
        deletion = await asyncio.to_thread(deletion_bodies.read_deletion, content)
        permit.check_deleted(deletion.keys)
        await asyncio.to_thread(deletion_bodies.check_digests, outgoing.headers, content)
        headers, body = await asyncio.to_thread(
            deletion_bodies.written, deletion, outgoing.headers, aliases_keys=aliases_keys
        )
    digest = hashlib.sha256(body).hexdigest()
    return replace(outgoing, headers=headers, payload_hash=digest, data=body, expect_continue=False)


def content_length(request: web.BaseRequest, headers: dict[str, str]) -> int | None:
    """Return the number of bytes of content, without framing; None if unknown."""
    decoded = headers.get("x-amz-decoded-content-length", "")
    if _is_length(decoded):
        return int(decoded)
    return request.content_length if request.body_exists else 0


def _is_length(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_LENGTH_DIGITS
