"""Whether AWS has a bucket: a fake AWS with a certificate of its own answers."""

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime

import pytest

from clary.control.egress import bucket_probe
from clary.control.server.edge import tls

NAME = "data.s3.us-west-2.amazonaws.com"


@pytest.fixture
async def fake_aws(tmp_path, monkeypatch):
    """Return a function that starts a server with these bytes as its answer; the probe trusts its authority."""
    files = tls.ensure_certificates(tmp_path, region="us-west-2", host="127.0.0.1", now=datetime.now(UTC))
    trusting = ssl.create_default_context(cafile=files.authority)
    monkeypatch.setattr(bucket_probe, "_context", lambda: trusting)
    servers, heads, served = [], [], []

    async def start(answer):
        async def serve(reader, writer):
            served.append(asyncio.current_task())
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls.server_context(files)))
        monkeypatch.setattr(bucket_probe, "_PORT", servers[-1].sockets[0].getsockname()[1])
        return heads

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()
    await asyncio.gather(*served)


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("200 OK", True),
        ("403 Forbidden", True),
        ("301 Moved Permanently", True),
        ("404 Not Found", False),
        ("503 Slow Down", None),
        ("400 Bad Request", None),
    ],
)
async def test_the_status_says_whether_the_bucket_exists(fake_aws, status, found):
    heads = await fake_aws(f"HTTP/1.1 {status}\r\nx-amz-request-id: 1\r\n\r\n".encode())
    assert await bucket_probe.aws_has_bucket(NAME, ["127.0.0.1"]) is found
    assert heads == [f"HEAD / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()]


@pytest.mark.parametrize(
    "answer", [b"", b"x" * 50000, b"\r\n\r\n", b"garbage x\r\n\r\n", b"HTTP/1.1 200 OK\r\nServer: a proxy\r\n\r\n"]
)
async def test_no_answer_and_one_that_is_not_of_aws_say_nothing(fake_aws, answer):
    await fake_aws(answer)
    assert await bucket_probe.aws_has_bucket(NAME, ["127.0.0.1"]) is None


async def test_another_name_on_the_certificate_is_no_answer_of_aws(fake_aws):
    await fake_aws(b"HTTP/1.1 200 OK\r\nx-amz-request-id: 1\r\n\r\n")
    assert None is await bucket_probe.aws_has_bucket("data.s3.eu-west-9.amazonaws.com", ["127.0.0.1"])


async def test_a_silent_server_is_given_up(monkeypatch):
    ended = asyncio.Event()

    async def hold(reader, writer):
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    monkeypatch.setattr(bucket_probe, "_PORT", server.sockets[0].getsockname()[1])
    monkeypatch.setattr(bucket_probe, "PROBE_TIMEOUT_S", 1.0)
    assert await bucket_probe.aws_has_bucket(NAME, ["127.0.0.1"]) is None
    await asyncio.wait_for(ended.wait(), 10)
    server.close()
    await server.wait_closed()
