"""Streaming verification of S3 request bodies: checked piece by piece, never held whole.

Where: `outgoing_bodies` picks a form by x-amz-content-sha256; `front` streams the pieces of these generators.

[Note: the last piece] A body is only verified at its end, and SeaweedFS does not check
x-amz-content-sha256 at all. So the last piece is held back until the whole body has been verified; on a mismatch the
generator raises, the store receives a truncated body, and stores nothing.

Forms (Amazon S3 API reference, "Signature calculations for the authorization header"):
    hexadecimal SHA-256                         checked here
    UNSIGNED-PAYLOAD                            nothing to check
    STREAMING-UNSIGNED-PAYLOAD-TRAILER          framing is passed on verbatim; the store checks the trailing checksum
    STREAMING-AWS4-HMAC-SHA256-PAYLOAD          unframed, every chunk's signature checked here
    STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER  likewise, then framed again without signatures, with its trailers
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Protocol

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.control.objects.authentication import ChunkSeed

IDLE_TIMEOUT_S = 60.0
# minimum bytes of a body that must arrive per idle timeout; even slow but useful connections carry more
LEAST_BYTES = 16 * 1024
MAX_CHUNK_HEADER_BYTES = 1024
MAX_TRAILER_BYTES = 16 * 1024
MAX_CHUNK_BYTES = 5 * 1024**3  # the largest body of one request


class Source(Protocol):
    """The readable side of a request's stream (aiohttp.StreamReader)."""

    async def readany(self) -> bytes:
        """Return the bytes received so far, at least one, or empty bytes at the end."""


async def read_pieces(source: Source, *, idle_timeout_s: float = IDLE_TIMEOUT_S) -> AsyncIterator[bytes]:
    """Yield a body of any length as it arrives, as long as enough bytes arrive in time.

    Only time spent waiting for the client counts, not the store's time to accept the pieces.

    Raises: WireError RequestTimeout if fewer than LEAST_BYTES arrive in `idle_timeout_s`.
    """
    left_s, num_bytes = idle_timeout_s, 0
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        try:
            async with asyncio.timeout(left_s):
                piece = await source.readany()
        except TimeoutError as error:
            raise WireError(
                "RequestTimeout",
                "Your socket connection to the server was not read from or written to within the timeout period: less "
                f"than {LEAST_BYTES} bytes came in {idle_timeout_s:.0f} s.",
            ) from error
        if not piece:
            return
        left_s -= loop.time() - began_s
        num_bytes += len(piece)
        if num_bytes >= LEAST_BYTES:
            left_s, num_bytes = idle_timeout_s, 0
        yield piece


async def check_sha256(pieces: AsyncIterator[bytes], expected: str) -> AsyncIterator[bytes]:
    """Yield the pieces of a body, the last piece only if the whole body has the SHA-256 `expected`.

    Raises: WireError XAmzContentSHA256Mismatch.
    """
    digest = hashlib.sha256()
    held = b""
    async for piece in pieces:
        if held:
            yield held
        digest.update(piece)
        held = piece
    if not hmac.compare_digest(digest.hexdigest(), expected.lower()):
        raise sha256_mismatch()
    if held:
        yield held


def sha256_mismatch() -> WireError:
    """Return the error for a body that differs from the signed body."""
    return WireError(
        "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed."
    )


async def unframe_signed(
    pieces: AsyncIterator[bytes], *, seed: ChunkSeed, decoded_length: int, with_trailer: bool
) -> AsyncIterator[bytes]:
    """Verify a body of signed chunks and yield its data, or, with a trailer, the same data framed without signatures.

    Args:
        decoded_length: value of x-amz-decoded-content-length, in bytes.
    Raises: WireError SignatureDoesNotMatch, IncompleteBody or InvalidRequest.
    """
    reader = _FrameReader(pieces)
    previous = seed.signature
    held = b""
    total = 0
    while True:
        size, given = _parse_chunk_header(await reader.line(MAX_CHUNK_HEADER_BYTES))
        total += size
        if total > decoded_length:
            raise _incomplete(decoded_length, total)
        digest = hashlib.sha256()
        async for piece in reader.take(size):
            if held:
                yield _frame(held) if with_trailer else held
            digest.update(piece)
            held = piece
        expected = sigv4.chunk_signature(
            seed.key, previous=previous, chunk_hash=digest.hexdigest(), amz_date=seed.amz_date, scope=seed.scope
        )
        if not hmac.compare_digest(expected, given):
            raise _chunk_mismatch()
        previous = given
        if size == 0:
            break
        if await reader.line(2):
            raise _malformed("a chunk does not end with CRLF")
    trailers = await _read_trailers(reader)
    if total != decoded_length:
        raise _incomplete(decoded_length, total)
    if not with_trailer:
        if held:
            yield held
        return
    _check_trailer_signature(trailers, seed=seed, previous=previous)
    lines = "".join(f"{name}:{value}\r\n" for name, value in trailers.items() if name != "x-amz-trailer-signature")
    yield (_frame(held) if held else b"") + b"0\r\n" + lines.encode() + b"\r\n"


class _FrameReader:
    """Reads lines and counted bytes from a stream of pieces."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer = b""

    async def line(self, limit: int) -> bytes:
        """Return the next line without its CRLF."""
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > limit:
                raise _malformed(f"a line is longer than {limit} bytes")
            self._buffer += await self._more()
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    async def take(self, size: int) -> AsyncIterator[bytes]:
        """Yield the next `size` bytes."""
        while size:
            if not self._buffer:
                self._buffer = await self._more()
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            size -= len(piece)
            yield piece

    async def _more(self) -> bytes:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            raise WireError(
                "IncompleteBody", "The request body terminated unexpectedly: its last chunk is missing."
            ) from None


def _parse_chunk_header(line: bytes) -> tuple[int, str]:
    size_text, _, extension = line.partition(b";")
    name, _, given = extension.partition(b"=")
    try:
        size = int(size_text, 16) if size_text.isalnum() else -1
        text = given.strip().decode("ascii")
    except ValueError:
        size, text = -1, ""
    if not 0 <= size <= MAX_CHUNK_BYTES or name.strip() != b"chunk-signature":
        raise _malformed(f"expected '<size>;chunk-signature=<signature>', got {line[:80]!r}")
    return size, text


async def _read_trailers(reader: _FrameReader) -> dict[str, str]:
    trailers: dict[str, str] = {}
    num_bytes = 0
    while line := await reader.line(MAX_TRAILER_BYTES):
        num_bytes += len(line)
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if not colon or num_bytes > MAX_TRAILER_BYTES:
            raise _malformed("a trailing header is malformed or too long")
        trailers[name.strip().lower()] = value.strip()
    return trailers


def _check_trailer_signature(trailers: dict[str, str], *, seed: ChunkSeed, previous: str) -> None:
    given = trailers.get("x-amz-trailer-signature", "")
    text = "".join(f"{name}:{value}\n" for name, value in trailers.items() if name != "x-amz-trailer-signature")
    expected = sigv4.trailer_signature(
        seed.key,
        previous=previous,
        trailer_hash=hashlib.sha256(text.encode()).hexdigest(),
        amz_date=seed.amz_date,
        scope=seed.scope,
    )
    if not hmac.compare_digest(expected.encode(), given.encode()):
        raise _chunk_mismatch()


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _chunk_mismatch() -> WireError:
    return WireError(
        "SignatureDoesNotMatch",
        "The signature of a chunk of the body does not match its content. Check your key and signing method.",
        http_status=403,
    )


def _incomplete(expected: int, got: int) -> WireError:
    return WireError(
        "IncompleteBody",
        f"You did not provide the number of bytes specified by x-amz-decoded-content-length: expected {expected}, got "
        f"{got}.",
    )


def _malformed(what: str) -> WireError:
    return WireError("InvalidRequest", f"The aws-chunked body is malformed: {what}.")
