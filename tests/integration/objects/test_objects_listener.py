"""The listener over real sockets: routing, limits, deadlines, broken HTTP; S3 behind it is a fake."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from clary.base.errors import EngineError
from clary.control.server.edge import connections, tls
from clary.control.server.edge.body_budget import BodyBudget
from clary.control.server.edge.gates import Admission, Refusal
from clary.control.server.edge.listener import Listener, new_event_loop
from clary.control.wire.cbor_documents import load_cbor
from clary.control.wire.messages import HttpRequest, HttpResponse

LIMIT = 10_000
V4 = "Authorization: AWS4-HMAC-SHA256 Credential=A/20260101/us-west-2/{}/aws4_request, SignedHeaders=host, Signature=0"


class FakeFront:
    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=f"s3 {request.raw_path}")


async def answer_aws(request: HttpRequest) -> HttpResponse:
    if request.raw_path == "/crash":
        raise ValueError("a defect with secret details")
    said = {"who": "aws", "method": request.method, "path": request.raw_path, "query": request.query}
    said["body"] = request.body.decode()
    return HttpResponse(200, [("Content-Type", "application/x-amz-json-1.1")], json.dumps(said).encode())


async def answer_clary(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, [("X-Amzn-RequestId", "own-id")], f"clary {request.raw_path}".encode())


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener(
        "127.0.0.1",
        0,
        aws_handler=answer_aws,
        s3_front=FakeFront(),
        clary_handler=answer_clary,
        max_body_bytes=LIMIT,
        body_timeout_s=0.5,
    )
    await listener.start()
    yield listener
    await listener.close()


async def exchange(listener: Listener, text: bytes, *, context: ssl.SSLContext | None = None) -> tuple[str, bytes]:
    """Send bytes; return head and body of the response, read until the connection is idle or closed."""
    port = listener.tls_port if context else listener.port
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None
    )
    try:
        writer.write(text)
        async with asyncio.timeout(10):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(v) for k, _, v in fields(head) if k.lower() == "content-length"), 0)
            return head, await reader.readexactly(length)
    finally:
        writer.close()


def fields(head: str) -> list[tuple[str, str, str]]:
    return [line.partition(": ") for line in head.splitlines()[1:] if line]


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("POST", "/", [V4.format("sagemaker"), "X-Amz-Target: SageMaker.CreateTrainingJob"], "aws"),
        ("PUT", "/BatchPutMetrics", [V4.format("sagemaker")], "aws"),
        ("POST", "/", [V4.format("sts"), "Content-Type: application/x-www-form-urlencoded"], "aws"),
        ("POST", "/", ["X-Amz-Target: SageMaker.CreateTrainingJob"], "aws"),
        ("POST", "/", ["Content-Type: application/x-www-form-urlencoded; charset=utf-8"], "aws"),
        ("GET", "/?Action=GetCallerIdentity&Version=2011-06-15", [], "aws"),
        ("GET", "/?X-Amz-Credential=A%2F20260101%2Fus-west-2%2Fsts%2Faws4_request&X-Amz-Signature=0", [], "aws"),
        ("GET", "/b/k", [V4.format("s3")], "s3"),
        ("GET", "/clary/v1/health", [V4.format("s3")], "s3"),
        ("GET", "/clary/key", [V4.format("s3")], "s3"),
        ("GET", "/b/k?X-Amz-Credential=A%2F20260101%2Fus-west-2%2Fs3%2Faws4_request&X-Amz-Signature=0", [], "s3"),
        ("GET", "/b/k?AWSAccessKeyId=A&Signature=B&Expires=1", [], "s3"),
        ("GET", "/b/k", ["Authorization: AWS A:B"], "s3"),
        ("GET", "/b/k", [], "s3"),
        ("GET", "/", [], "s3"),
        ("GET", "/clary/v1/agents/j/1/algo-1/assignment", ["Authorization: Bearer t"], "clary"),
    ],
)
async def test_request_is_routed_to_its_service(
    listener: Listener, method: str, path: str, headers: list[str], expected: str
) -> None:
    head, body = await exchange(listener, request(method, path, *headers))
    assert head.startswith("HTTP/1.1 200")
    answered_by = json.loads(body)["who"] if body.startswith(b"{") else body.decode().split()[0]
    assert answered_by == expected
    assert "X-Amzn-RequestId: " in head or expected == "s3"


async def test_request_reaches_the_handler_as_it_was_sent(listener: Listener) -> None:
    text = request("POST", "/a%20b/%2F?q=%20&r", "X-Amz-Target: T", body=b'{"a": 1}')
    head, body = await exchange(listener, text)
    said = json.loads(body)
    assert (said["method"], said["path"], said["query"]) == ("POST", "/a%20b/%2F", "q=%20&r")
    assert said["body"] == '{"a": 1}'
    assert head.count("Content-Type: ") == 1
    assert "Content-Type: application/x-amz-json-1.1" in head


async def test_handler_chooses_its_own_request_id(listener: Listener) -> None:
    head, _ = await exchange(listener, request("GET", "/clary/v1/x", "Authorization: Bearer t"))
    assert "X-Amzn-RequestId: own-id" in head
    assert head.count("RequestId") == 1


async def test_health_is_answered_without_authentication(listener: Listener) -> None:
    head, body = await exchange(listener, request("GET", "/clary/v1/health"))
    assert head.startswith("HTTP/1.1 200")
    health = json.loads(body)
    assert health["status"] == "ok"
    assert abs(health["now_s"] - time.time()) < 60  # agents measure the offset of their clocks by it
    assert set(health) == {"now_s", "status", "version"}


async def test_announced_oversized_body_is_refused_before_it_is_sent(listener: Listener) -> None:
    text = request("POST", "/", "X-Amz-Target: T", f"Content-Length: {LIMIT + 1}")
    head, body = await exchange(listener, text)
    assert head.startswith("HTTP/1.1 413")
    assert json.loads(body)["__type"] == "RequestEntityTooLarge"
    assert str(LIMIT) in json.loads(body)["message"]


async def test_a_client_that_speaks_cbor_can_read_the_refusal_of_its_head(listener: Listener) -> None:
    headers = ["smithy-protocol: rpc-v2-cbor", "Content-Type: application/cbor", f"Content-Length: {LIMIT + 1}"]
    head, body = await exchange(
        listener, request("POST", "/service/GraniteServiceVersion20100801/operation/A", *headers)
    )
    assert head.startswith("HTTP/1.1 413")
    assert "smithy-protocol: rpc-v2-cbor" in head
    assert "Content-Type: application/cbor" in head
    assert load_cbor(body)["__type"] == "RequestEntityTooLarge"


async def test_unannounced_oversized_body_is_refused_at_the_limit(listener: Listener) -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    text = request("POST", "/", "X-Amz-Target: T", "Transfer-Encoding: chunked") + chunk * 12
    head, body = await exchange(listener, text)
    assert head.startswith("HTTP/1.1 413")
    assert json.loads(body)["__type"] == "RequestEntityTooLarge"


async def test_body_at_the_limit_is_accepted(listener: Listener) -> None:
    head, body = await exchange(listener, request("POST", "/", "X-Amz-Target: T", body=b"x" * LIMIT))
    assert head.startswith("HTTP/1.1 200")
    assert len(json.loads(body)["body"]) == LIMIT


async def test_request_whose_body_never_arrives_ends_at_the_deadline(listener: Listener) -> None:
    head, body = await exchange(listener, request("POST", "/", "X-Amz-Target: T", "Content-Length: 10") + b"abc")
    assert head.startswith("HTTP/1.1 408")
    assert json.loads(body)["__type"] == "RequestTimeoutException"


async def test_client_that_expects_100_continue_receives_it(listener: Listener) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(request("POST", "/", "X-Amz-Target: T", "Expect: 100-continue", "Content-Length: 2"))
    async with asyncio.timeout(5):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize(
    "text",
    [
        b"garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_malformed_http_is_refused_and_the_listener_stays_usable(listener: Listener, text: bytes) -> None:
    head, _ = await exchange(listener, text)
    assert head.startswith(("HTTP/1.1 400", "HTTP/1.0 400"))
    head, _ = await exchange(listener, request("GET", "/clary/v1/health"))
    assert head.startswith("HTTP/1.1 200")


async def test_defect_in_a_handler_becomes_an_error_with_its_request_id_and_no_details(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        head, body = await exchange(listener, request("POST", "/crash", "X-Amz-Target: T"))
    assert head.startswith("HTTP/1.1 500")
    assert json.loads(body)["__type"] == "InternalFailure"
    assert b"secret" not in body
    request_id = {k: v for k, _, v in fields(head)}["X-Amzn-RequestId"]
    assert request_id in json.loads(body)["message"]
    assert request_id in caplog.text


async def test_error_of_a_port_in_use_names_the_port(listener: Listener) -> None:
    second = Listener("127.0.0.1", listener.port, aws_handler=answer_aws, s3_front=FakeFront(), max_body_bytes=1)
    with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{listener.port}"):
        await second.start()


async def test_tls_port_serves_the_same_handlers_under_the_private_authority(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path, region="us-west-2", host="127.0.0.1", now=datetime.now(UTC))
    listener = Listener(
        "127.0.0.1",
        0,
        aws_handler=answer_aws,
        s3_front=FakeFront(),
        max_body_bytes=LIMIT,
        tls_context=tls.server_context(files),
    )
    await listener.start()
    try:
        context = ssl.create_default_context(cafile=str(files.authority))
        head, body = await exchange(listener, request("GET", "/b/k", V4.format("s3")), context=context)
        assert (head.startswith("HTTP/1.1 200"), body) == (True, b"s3 /b/k")
        with pytest.raises(ssl.SSLCertVerificationError):
            await exchange(listener, b"", context=ssl.create_default_context())
    finally:
        await listener.close()


async def over_tls(folder: Path) -> tuple[Listener, socket.socket]:
    """Start a listener; return it with a client's socket after one answer, whose TLS nobody reads any more."""
    files = tls.ensure_certificates(folder, region="us-west-2", host="127.0.0.1", now=datetime.now(UTC))
    context = tls.server_context(files)
    listener = Listener(
        "127.0.0.1", 0, aws_handler=answer_aws, s3_front=FakeFront(), max_body_bytes=LIMIT, tls_context=context
    )
    await listener.start()
    assert listener.tls_port is not None

    def connect() -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", listener.tls_port), timeout=5)
        client = ssl.create_default_context(cafile=str(files.authority)).wrap_socket(plain, server_hostname="127.0.0.1")
        client.sendall(request("GET", "/b/k", V4.format("s3")))
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        return client

    return listener, await asyncio.to_thread(connect)


def sockets_to(peer: tuple[str, int]) -> int:
    """Return the number of this process's sockets that are connected to an address."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of the folder itself, and of sockets without a peer
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    found += one.getpeername() == peer
    return found


async def test_close_leaves_no_socket_of_a_client_that_does_not_end_its_tls(tmp_path: Path) -> None:
    listener, client = await over_tls(tmp_path)
    with client:
        assert sockets_to(client.getsockname()) == 1
        async with asyncio.timeout(8):
            await listener.close()
        assert sockets_to(client.getsockname()) == 0


async def test_close_ends_a_tls_connection_that_is_being_closed(tmp_path: Path) -> None:
    listener, client = await over_tls(tmp_path)
    with client:
        assert listener._runner is not None
        (connection,) = listener._runner.server.connections
        transport = connection.transport
        transport.close()
        transport.close()  # asyncio's TLS transport loses its protocol at a second close
        async with asyncio.timeout(8):
            await listener.close()
            while sockets_to(client.getsockname()):  # TLS is ended within TLS_SHUTDOWN_S
                await asyncio.sleep(0.05)


async def test_a_refused_client_that_does_not_end_its_tls_loses_its_connection_soon(tmp_path: Path) -> None:
    listener, client = await over_tls(tmp_path)
    with client:
        client.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000)
        async with asyncio.timeout(connections.TLS_SHUTDOWN_S + 8):  # asyncio's own limit is 30 s
            while sockets_to(client.getsockname()):
                await asyncio.sleep(0.05)
    await listener.close()


async def test_close_ends_a_request_that_hangs(listener: Listener) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(request("POST", "/", "X-Amz-Target: T", "Content-Length: 10"))
    await writer.drain()
    async with asyncio.timeout(8):
        await listener.close()
        assert await reader.read(1000) is not None
    writer.close()


def test_service_loop_is_uvloop_where_it_is_installed() -> None:
    loop = new_event_loop()
    assert type(loop).__module__.startswith("uvloop")
    loop.close()


def known_by_token(head: HttpRequest) -> Admission | Refusal:
    if head.header("authorization") is None:
        return Refusal(answer=HttpResponse(403, [], b"who?"))
    return Admission(client="somebody", max_body_bytes=LIMIT * 100, is_known=True)


@pytest.fixture
async def guarded() -> AsyncIterator[Listener]:
    """A listener for at most eight connections, with a budget of a tenth of a megabyte for bodies."""
    listener = Listener(
        "127.0.0.1",
        0,
        aws_handler=answer_aws,
        aws_gate=known_by_token,
        s3_front=FakeFront(),
        max_body_bytes=LIMIT * 100,
        body_budget=BodyBudget(200_000),
        max_connections=8,
        body_timeout_s=1.0,
    )
    await listener.start()
    yield listener
    await listener.close()


async def test_unauthenticated_client_gets_no_100_continue(guarded: Listener) -> None:
    announced = request("POST", "/", "X-Amz-Target: T", "Expect: 100-continue", f"Content-Length: {LIMIT * 50}")
    head, _ = await exchange(guarded, announced)
    assert head.startswith("HTTP/1.1 403")
    assert "Connection: close" in head


async def test_bodies_beyond_the_budget_are_refused_and_accepted_at_a_retry(guarded: Listener) -> None:
    known = ["X-Amz-Target: T", "Authorization: x"]
    reader, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
    writer.write(request("POST", "/", *known, "Content-Length: 165000") + b"x" * 160_000)
    await writer.drain()
    await asyncio.sleep(0.2)
    head, body = await exchange(guarded, request("POST", "/", *known, body=b"y" * 200_000))
    assert head.startswith("HTTP/1.1 503")
    assert "Retry-After: 1" in head
    assert "Please try again" in json.loads(body)["message"]
    head, _ = await exchange(guarded, request("POST", "/", *known, body=b"y" * 60_000))
    assert head.startswith("HTTP/1.1 200"), "an ordinary request passes"
    writer.write(b"x" * 5_000)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
    head, _ = await exchange(guarded, request("POST", "/", *known, body=b"y" * 150_000))
    assert head.startswith("HTTP/1.1 200")


async def test_slow_unauthenticated_connections_are_evicted_for_the_next_client(guarded: Listener) -> None:
    slow = [await asyncio.open_connection("127.0.0.1", guarded.port) for _ in range(12)]
    for _, writer in slow:
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n")
    await asyncio.sleep(0.1)
    head, _ = await exchange(guarded, request("GET", "/clary/v1/health"))
    assert head.startswith("HTTP/1.1 200")
    assert await slow[0][0].read() == b"", "the first one was closed"
    for _, writer in slow:
        writer.close()


async def test_authenticated_connections_are_not_evicted(guarded: Listener) -> None:
    known = [await asyncio.open_connection("127.0.0.1", guarded.port) for _ in range(4)]
    for _, writer in known:
        writer.write(request("POST", "/", "X-Amz-Target: T", "Authorization: x", "Content-Length: 2"))
        await writer.drain()
    await asyncio.sleep(0.1)
    head, body = await exchange(guarded, request("GET", "/clary/v1/health"))
    assert (head.startswith("HTTP/1.1 503"), b"too many connections" in body) == (True, True)
    for reader, writer in known:
        writer.write(b"{}")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    head, _ = await exchange(guarded, request("GET", "/clary/v1/health"))
    assert head.startswith("HTTP/1.1 200")
    for _, writer in known:
        writer.close()
