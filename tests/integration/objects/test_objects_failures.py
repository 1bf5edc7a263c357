"""The S3 front when its store or its client fails half way; the store is a fake controlled by the test."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest

from clary.base.clock import SystemClock
from clary.contract import sigv4
from clary.contract.launch_plan import Credentials, Endpoint
from clary.control.objects.front import S3Front
from clary.control.server.edge.listener import Listener
from clary.control.wire.messages import HttpRequest, HttpResponse

USER = Credentials(access_key_id="USER", secret_access_key="secret")
MIB = 1024 * 1024

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def no_aws(_: HttpRequest) -> HttpResponse:
    return HttpResponse(500)


class Bench:
    """A front with a fake store behind it, and a client that sends plain HTTP."""

    def __init__(self) -> None:
        self.script: Script | None = None
        self.received = bytearray()  # sent by the fake store after the headers
        self.heads: list[str] = []

    async def start(self) -> None:
        self._fake_store = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.store_port = self._fake_store.sockets[0].getsockname()[1]
        store = Credentials(access_key_id="STORE", secret_access_key="store-secret")
        endpoint = Endpoint(url=f"http://127.0.0.1:{self.store_port}", region="us-west-2", credentials=store)
        secrets = {USER.access_key_id: USER.secret_access_key}
        self.front = S3Front(endpoint, secrets.get, account_id="1" * 12, clock=SystemClock(), skew_s=300)
        await self.front.start()
        self.listener = Listener("127.0.0.1", 0, aws_handler=no_aws, s3_front=self.front, max_body_bytes=1)
        await self.listener.start()

    async def close(self) -> None:
        await self.listener.close()
        await self.front.close()
        await self.stop_store()

    async def stop_store(self) -> None:
        self._fake_store.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            assert self.script is not None
            await self.script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def drain(self, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            self.received += piece

    async def send(
        self, method: str, path: str, *, length: int = 0, payload_hash: str = sigv4.UNSIGNED_PAYLOAD
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = f"127.0.0.1:{self.listener.port}"
        added = sigv4.sign(
            method,
            path,
            "",
            {"host": host},
            payload_hash,
            credentials=USER,
            region="us-west-2",
            service="s3",
            now=datetime.now(UTC),
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        headers = {"host": host, **added, **({"content-length": str(length)} if length else {})}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        return reader, writer


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.start()
    yield bench
    await bench.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        return await reader.read()


async def test_store_that_is_down_is_service_unavailable(bench: Bench) -> None:
    await bench.stop_store()
    reader, writer = await bench.send("PUT", "/bucket/key", length=5)
    writer.write(b"12345")
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 503")
    assert "Retry-After: 1" in head
    assert b"<Code>ServiceUnavailable</Code>" in await reader.readuntil(b"</Error>")
    writer.close()


async def test_store_that_closes_the_connection_is_service_unavailable(bench: Bench) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    bench.script = hang_up
    reader, writer = await bench.send("GET", "/bucket/key")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
    writer.close()


async def test_store_that_could_not_parse_the_body_is_service_unavailable(bench: Bench) -> None:
    async def refuse_unread(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n400 Bad Request"
        )
        await writer.drain()

    bench.script = refuse_unread
    reader, writer = await bench.send("GET", "/bucket/key")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
    assert b"damaged on its way" in await reader.readuntil(b"</Error>")
    writer.close()


async def test_bad_request_errors_of_the_store_are_passed_on(bench: Bench) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b"<Error><Code>InvalidPart</Code></Error>"
        head = b"HTTP/1.1 400 Bad Request\r\nx-amz-request-id: 1\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await writer.drain()

    bench.script = refuse
    reader, writer = await bench.send("GET", "/bucket/key")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400")
    assert b"InvalidPart" in await reader.readuntil(b"</Error>")
    writer.close()


@pytest.mark.parametrize(
    ("answered", "told"), [(b"500 Internal Server Error", b"503"), (b"501 Not Implemented", b"501")]
)
async def test_a_full_disk_is_named_for_failures_of_the_store_and_not_for_what_it_lacks(
    bench: Bench, answered: bytes, told: bytes
) -> None:
    async def fail(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 " + answered + b"\r\nx-amz-request-id: 1\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    bench.script = fail
    bench.front._why_full = lambda: "the disk is full"
    reader, writer = await bench.send("GET", "/bucket/key")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 " + told)
    writer.close()


@pytest.mark.parametrize("framing", [b"Content-Length: 1000000\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_aborted_download_never_looks_complete(bench: Bench, framing: bytes) -> None:
    async def break_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        part = b"x" * 500_000
        frame = b"%x\r\n" % len(part) + part + b"\r\n" if b"chunked" in framing else part
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n" + frame)
        await writer.drain()

    bench.script = break_off
    reader, writer = await bench.send("GET", "/bucket/key")
    received = b""
    with contextlib.suppress(ConnectionResetError):
        received = await answer_of(reader)
    assert not received.endswith(b"0\r\n\r\n")
    assert len(received) < 1_000_000
    writer.close()


async def test_client_that_disconnects_during_an_upload_aborts_the_stores_request(bench: Bench) -> None:
    bench.script = bench.drain
    _, writer = await bench.send("PUT", "/bucket/key", length=10 * MIB)
    writer.write(b"x" * MIB)
    await until(lambda: len(bench.received) >= MIB // 2)
    writer.transport.abort()
    async with asyncio.timeout(10):
        while bench.front._store._session.connector._acquired:  # the connection to the store is closed too
            await asyncio.sleep(0.01)
    assert len(bench.received) <= MIB
    assert "content-length: 10485760" in bench.heads[0].lower()


async def test_checksum_mismatch_at_the_end_of_a_body_withholds_its_last_piece(bench: Bench) -> None:
    bench.script = bench.drain
    genuine = b"a" * (2 * MIB)
    payload_hash = hashlib.sha256(genuine).hexdigest()
    reader, writer = await bench.send("PUT", "/bucket/key", length=len(genuine), payload_hash=payload_hash)
    writer.write(genuine[:-1] + b"b")
    assert b"XAmzContentSHA256Mismatch" in await reader.readuntil(b"</Error>")
    assert len(bench.received) < len(genuine)
    writer.close()


async def test_upload_to_a_store_that_does_not_read_stalls_the_client(bench: Bench) -> None:
    release = asyncio.Event()

    async def do_not_read(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await release.wait()

    bench.script = do_not_read
    _, writer = await bench.send("PUT", "/bucket/key", length=200 * MIB)
    sent = 0
    with contextlib.suppress(TimeoutError):
        for _ in range(200):
            writer.write(b"x" * MIB)
            async with asyncio.timeout(0.5):
                await writer.drain()
            sent += 1
    assert sent < 40, "the front took a body that nobody reads into memory"
    writer.transport.abort()
    release.set()


async def test_refusal_of_the_store_in_the_middle_of_an_upload_reaches_the_client(bench: Bench) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        body = b"<Error><Code>NoSuchBucket</Code></Error>"
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        await asyncio.sleep(0.2)

    bench.script = refuse
    reader, writer = await bench.send("PUT", "/bucket/key", length=50 * MIB)
    writer.write(b"x" * MIB)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404")
        assert b"NoSuchBucket" in await reader.readuntil(b"</Error>")
    writer.transport.abort()
