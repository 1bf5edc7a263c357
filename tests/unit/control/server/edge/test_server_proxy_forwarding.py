"""Plain HTTP through the proxy over real sockets: whole bodies in both directions, one request per connection."""

import asyncio
import contextlib

import pytest

from clary.control.egress import forwarding
from clary.control.egress.entries import parse_entry
from clary.control.egress.policy import EgressPolicy
from clary.control.server.edge import connect_proxy
from clary.control.server.edge.connect_proxy import ConnectProxy

DEADLINE_S = 5
MORE_S = 0.05  # time in which no further bytes may arrive after a body


class FakeRegistry:
    """Keeps the request that it received, and answers with given bytes."""

    def __init__(self, answer, body_end):
        self.answer = answer
        self.body_end = body_end
        self.got = b""

    async def serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.got = await reader.readuntil(b"\r\n\r\n")
            if self.body_end:
                self.got += await reader.readuntil(self.body_end)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(MORE_S):
                        self.got += await reader.read(1024)
            writer.write(self.answer)
            await writer.drain()
        writer.close()


@pytest.fixture
async def through(monkeypatch):
    """Return a function that sends bytes through a proxy to a registry; it returns response and received request."""
    async with contextlib.AsyncExitStack() as stack:

        async def through(
            request, answer=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", *, body_end=b"", entries=None
        ):
            registry = FakeRegistry(answer, body_end)
            server = await stack.enter_async_context(await asyncio.start_server(registry.serve, "127.0.0.1", 0))
            place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            named = [place] if entries is None else entries
            policy = EgressPolicy(has_internet=True, reachable=tuple(map(parse_entry, named)))
            proxy = ConnectProxy("127.0.0.1", tls_port=0, own_names=frozenset(), policy=policy)
            port = await proxy.start()
            stack.push_async_callback(proxy.close)
            async with asyncio.timeout(DEADLINE_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(request.replace(b"PLACE", place.encode()))
                    answered = await reader.read(-1)
                finally:
                    writer.close()
            return answered, registry.got.replace(place.encode(), b"PLACE")

        yield through


async def test_a_request_is_forwarded_in_origin_form_without_the_headers_for_the_proxy(through):
    request = (
        b"GET http://PLACE/simple/?a=b HTTP/1.1\r\nHost: other\r\nProxy-Authorization: secret\r\nX-Hop: 1\r\n"
        b"Connection: keep-alive, X-Hop\r\nAccept: */*\r\n\r\n"
    )
    answered, got = await through(request)
    assert got == b"GET /simple/?a=b HTTP/1.1\r\nHost: PLACE\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    assert answered == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


async def test_the_second_request_of_a_connection_is_never_forwarded(through):
    """The second request may be meant for another target, which has not been checked."""
    one = b"GET http://PLACE/ HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
    answered, got = await through(one + b"GET http://169.254.169.254/ HTTP/1.1\r\n\r\n", body_end=b"abc")
    assert got.endswith(b"\r\n\r\nabc")
    assert answered.endswith(b"ok")


async def test_a_chunked_body_passes_unchanged_up_to_its_end(through):
    body = b"5;x=y\r\nhello\r\n0\r\nTrailer: t\r\n\r\n"
    request = b"PUT http://PLACE/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    _, got = await through(request + b"GET more", body_end=b"t\r\n\r\n")
    assert got.endswith(b"\r\n\r\n" + body)


async def test_a_large_response_and_an_interim_response_pass_whole(through):
    answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nKeep-Alive: 5\r\n\r\n" + b"x" * 1_000_000
    answered, _ = await through(
        b"PUT http://PLACE HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n", answer
    )
    assert answered.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nConnection: close\r\n\r\n")
    assert answered.endswith(b"x" * 1_000_000)


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Content-Length: +1\r\n",
        b"Content-Length : 1\r\n",
        b" folded\r\n",
    ],
)
async def test_bodies_that_two_servers_could_parse_differently_are_refused(through, framing):
    answered, got = await through(b"POST http://PLACE/ HTTP/1.1\r\n" + framing + b"\r\nab")
    assert answered.startswith(b"HTTP/1.1 405 ")
    assert got == b""


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"])
async def test_a_target_that_does_not_answer_in_http_is_a_bad_gateway(through, answer):
    answered, _ = await through(b"GET http://PLACE/ HTTP/1.1\r\n\r\n", answer)
    assert answered.startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize(
    "target", [b"PLACE", b"169.254.169.254", b"localhost", b"example.com", b"sts.amazonaws.com", b"[::1]:1"]
)
async def test_plain_http_reaches_only_addresses_that_the_owner_lists(through, target):
    answered, got = await through(b"GET http://" + target + b"/ HTTP/1.1\r\n\r\n", entries=["10.1.0.0/16:9"])
    assert answered.startswith(b"HTTP/1.1 403 ")
    assert got == b""


async def test_a_silent_target_is_given_up(through, monkeypatch):
    monkeypatch.setattr(connect_proxy, "IDLE_TIMEOUT_S", 0.1)
    with contextlib.suppress(ConnectionResetError):
        answered, _ = await through(b"GET http://PLACE/ HTTP/1.1\r\nContent-Length: 5\r\n\r\n", b"")
        assert answered == b""


async def test_an_endless_line_between_chunks_ends_the_request(through):
    request = b"PUT http://PLACE/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;"
    with contextlib.suppress(ConnectionResetError):
        answered, got = await through(request + b"x" * forwarding.MAX_CHUNK_LINE_BYTES + b"\r\n", b"")
        assert answered == b""
        assert not got.endswith(b"x\r\n")


@pytest.mark.parametrize(
    ("source", "name", "status", "peer"),
    [
        ("127.64.0.7", "127.0.0.1", 200, "127.64.0.7"),
        ("127.64.0.7", "localhost", 200, "127.64.0.7"),
        ("127.64.0.7", "127.0.0.2", 403, None),
        ("127.0.0.1", "127.0.0.1", 403, None),  # another user's client must not reach the service as its owner
    ],
)
async def test_a_job_reaches_the_service_itself_under_its_own_address(source, name, status, peer):
    """The AWS Common Runtime sends requests for AWS_ENDPOINT_URL to HTTP_PROXY in spite of NO_PROXY."""
    peers = []

    async def serve(reader, writer):
        peers.append(writer.get_extra_info("peername")[0])
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(DEADLINE_S):
        port = server.sockets[0].getsockname()[1]
        policy = EgressPolicy(has_internet=True, own_ports=frozenset({port}))
        proxy = ConnectProxy("127.0.0.1", tls_port=0, own_names=frozenset(), api_port=port, policy=policy)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start(), local_addr=(source, 0))
            writer.write(f"GET http://{name}:{port}/bucket/key HTTP/1.1\r\n\r\n".encode())
            answered = await reader.read(-1)
            writer.close()
        finally:
            await proxy.close()
    assert answered.startswith(f"HTTP/1.1 {status} ".encode())
    assert peers == ([] if peer is None else [peer])
