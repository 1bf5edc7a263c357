"""Request bodies on their way to the store: their checks, and that no body is complete before its checks pass."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.control.objects import payloads
from clary.control.objects.authentication import ChunkSeed

# Amazon S3 API reference, "Signature Calculations for the Authorization Header: Transferring Payload in Multiple
# Chunks": 65 KiB of the letter a in chunks of 64 KiB.
SCOPE = "20130524/us-east-1/s3/aws4_request"
KEY = sigv4.signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", date="20130524", region="us-east-1", service="s3")
SEED = ChunkSeed(
    key=KEY,
    amz_date="20130524T000000Z",
    scope=SCOPE,
    signature="4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
)
EXAMPLE_BODY = (
    b"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n"
    + b"a" * 65536
    + b"\r\n400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n"
    + b"a" * 1024
    + b"\r\n0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n"
)
EXAMPLE_LENGTH = 66560


async def pieces_of(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def collect(pieces: AsyncIterator[bytes]) -> tuple[list[bytes], str]:
    """Return the pieces that passed, and the code of the error that ended them."""
    passed: list[bytes] = []
    try:
        async for piece in pieces:
            passed.append(piece)
    except WireError as error:
        return passed, error.code
    return passed, ""


def unframe(body: bytes, *, size: int = 10_000, length: int = EXAMPLE_LENGTH, with_trailer: bool = False):
    pieces = payloads.unframe_signed(pieces_of(body, size), seed=SEED, decoded_length=length, with_trailer=with_trailer)
    passed, code = asyncio.run(collect(pieces))
    return b"".join(passed), code


def sign_chunks(data: bytes, *, size: int, trailer: str = "") -> bytes:
    previous, body = SEED.signature, b""
    for chunk in [data[i : i + size] for i in range(0, len(data), size)] + [b""]:
        previous = sigv4.chunk_signature(
            KEY,
            previous=previous,
            chunk_hash=hashlib.sha256(chunk).hexdigest(),
            amz_date=SEED.amz_date,
            scope=SCOPE,
        )
        body += b"%x;chunk-signature=%b\r\n" % (len(chunk), previous.encode())
        body += chunk + b"\r\n" if chunk else b""
    if trailer:
        signature = sigv4.trailer_signature(
            KEY,
            previous=previous,
            trailer_hash=hashlib.sha256(f"{trailer}\n".encode()).hexdigest(),
            amz_date=SEED.amz_date,
            scope=SCOPE,
        )
        body += f"{trailer}\r\nx-amz-trailer-signature:{signature}\r\n".encode()
    return body + b"\r\n"


@pytest.mark.parametrize("size", [1, 7, 1000, 65536, 10**6])
def test_published_example_of_signed_chunks_is_accepted_in_pieces_of_any_size(size: int) -> None:
    assert unframe(EXAMPLE_BODY, size=size) == (b"a" * EXAMPLE_LENGTH, "")


@pytest.mark.parametrize("position", [100, 65536, 66000, len(EXAMPLE_BODY) - 10])
def test_any_changed_byte_of_signed_chunks_is_refused_before_the_last_piece_is_passed_on(position: int) -> None:
    body = bytearray(EXAMPLE_BODY)
    body[position] ^= 1
    passed, code = unframe(bytes(body))
    assert code in ("SignatureDoesNotMatch", "InvalidRequest", "IncompleteBody")
    assert len(passed) < EXAMPLE_LENGTH


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (EXAMPLE_BODY[:70_000][:66_000], "IncompleteBody"),
        (b"", "IncompleteBody"),
        (b"zz;chunk-signature=0\r\n", "InvalidRequest"),
        (b"-1;chunk-signature=0\r\n", "InvalidRequest"),
        (b"10\r\n" + b"a" * 16, "InvalidRequest"),
        (b"x" * 5000, "InvalidRequest"),
        (b"fffffffffffffff;chunk-signature=0\r\n", "InvalidRequest"),
        (b"20000;chunk-signature=0\r\n", "IncompleteBody"),
    ],
)
def test_broken_framing_is_refused(body: bytes, code: str) -> None:
    assert unframe(body) == (b"", code) or (unframe(body)[1] == code and len(unframe(body)[0]) < EXAMPLE_LENGTH)


@pytest.mark.parametrize("length", [EXAMPLE_LENGTH - 1, EXAMPLE_LENGTH + 1])
def test_body_of_another_length_than_announced_is_refused(length: int) -> None:
    passed, code = unframe(EXAMPLE_BODY, length=length)
    assert code == "IncompleteBody"
    assert len(passed) < EXAMPLE_LENGTH


def test_dropped_chunk_breaks_the_chain() -> None:
    first, second = EXAMPLE_BODY.index(b"10000;"), EXAMPLE_BODY.index(b"400;")
    body = EXAMPLE_BODY[:first] + EXAMPLE_BODY[second:]
    assert unframe(body, length=1024)[1] == "SignatureDoesNotMatch"


@given(st.binary(max_size=300), st.integers(1, 50), st.integers(1, 400))
def test_signed_chunks_are_decoded_to_the_original_data(data: bytes, chunk: int, piece: int) -> None:
    assert unframe(sign_chunks(data, size=chunk), size=piece, length=len(data)) == (data, "")


@given(st.binary(max_size=300), st.integers(1, 50), st.integers(1, 400))
def test_chunks_with_a_trailer_are_framed_again_without_signatures(data: bytes, chunk: int, piece: int) -> None:
    trailer = f"x-amz-checksum-crc32:{zlib.crc32(data)}"
    body, code = unframe(
        sign_chunks(data, size=chunk, trailer=trailer), size=piece, length=len(data), with_trailer=True
    )
    assert code == ""
    decoded = b""
    while not body.startswith(b"0\r\n"):
        size, _, body = body.partition(b"\r\n")
        decoded, body = decoded + body[: int(size, 16)], body[int(size, 16) + 2 :]
    assert decoded == data
    assert body == f"0\r\n{trailer}\r\n\r\n".encode()


@pytest.mark.parametrize("change", [(b"crc32:1", b"crc32:2"), (b"trailer-signature:", b"other:")])
def test_changed_trailer_is_refused_and_the_end_withheld(change: tuple[bytes, bytes]) -> None:
    body = sign_chunks(b"data", size=2, trailer="x-amz-checksum-crc32:1").replace(*change)
    passed, code = unframe(body, length=4, with_trailer=True)
    assert code == "SignatureDoesNotMatch"
    assert b"0\r\n" not in passed


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_body_with_the_signed_hash_passes(size: int) -> None:
    data = b"some content"
    passed, code = await collect(payloads.check_sha256(pieces_of(data, size), hashlib.sha256(data).hexdigest()))
    assert (b"".join(passed), code) == (data, "")


async def test_body_with_another_hash_is_refused_and_its_last_piece_withheld() -> None:
    passed, code = await collect(payloads.check_sha256(pieces_of(b"abcdef", 2), hashlib.sha256(b"x").hexdigest()))
    assert (passed, code) == ([b"ab", b"cd"], "XAmzContentSHA256Mismatch")


async def test_a_body_that_stalls_ends_at_the_deadline() -> None:
    class FakeSource:
        async def readany(self) -> bytes:
            await asyncio.sleep(60)
            return b""

    passed, code = await collect(payloads.read_pieces(FakeSource(), idle_timeout_s=0.01))
    assert (passed, code) == ([], "RequestTimeout")


class FakeDripping:
    """A client that sends a byte now and then, or a megabyte."""

    def __init__(self, num_bytes: int, pieces: int) -> None:
        self.num_bytes, self.left = num_bytes, pieces

    async def readany(self) -> bytes:
        await asyncio.sleep(0.02)
        self.left -= 1
        return b"x" * self.num_bytes if self.left >= 0 else b""


async def test_a_body_that_arrives_too_slowly_ends_although_bytes_keep_arriving() -> None:
    passed, code = await collect(payloads.read_pieces(FakeDripping(1, 1000), idle_timeout_s=0.1))
    assert code == "RequestTimeout"
    assert len(passed) < 10


async def test_a_body_that_arrives_fast_enough_may_take_many_times_the_deadline() -> None:
    passed, code = await collect(payloads.read_pieces(FakeDripping(payloads.LEAST_BYTES, 20), idle_timeout_s=0.1))
    assert (len(passed), code) == (20, "")
