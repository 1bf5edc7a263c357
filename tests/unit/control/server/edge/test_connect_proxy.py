"""The proxy over real sockets: connections that reach the TLS port, refusals, and clients that misbehave."""

import asyncio
import contextlib
import gc
import os
import socket

import pytest

from clary.base.errors import EngineError, ObjectStoreError
from clary.control.egress import bucket_probe, local_users
from clary.control.egress.entries import parse_entry
from clary.control.egress.policy import EgressPolicy
from clary.control.server.edge import connect_proxy
from clary.control.server.edge.acceptor import Acceptor
from clary.control.server.edge.connect_proxy import ConnectProxy
from clary.control.server.edge.tls import service_names

DEADLINE_S = 5


class EchoServer:
    """Answers with its name and the client's bytes, once the client has sent all of them."""

    def __init__(self, name):
        self.name = name
        self.num_connections = 0
        self._acceptor = Acceptor(self._serve)

    async def start(self):
        return self._acceptor.start("127.0.0.1")

    async def _serve(self, reader, writer):
        self.num_connections += 1
        try:
            writer.write(self.name + b":" + await reader.read(-1))
            await writer.drain()
        except OSError:
            pass  # the client has closed the connection
        finally:
            writer.close()  # also if the end of the test cancels this coroutine

    async def close(self):
        await self._acceptor.close()


@pytest.fixture
async def tls_port():
    server = EchoServer(b"tls")
    yield await server.start()
    await server.close()


@pytest.fixture
async def elsewhere():
    server = EchoServer(b"elsewhere")
    server.port = await server.start()
    yield server
    await server.close()


@pytest.fixture
async def start(tls_port):
    """Return a function that starts proxies for the internet and these entries; all tasks end with the test."""
    proxies = []

    async def start(*entries, has_internet=True, **options):
        policy = EgressPolicy(has_internet=has_internet, reachable=tuple(map(parse_entry, entries)))
        values = {"tls_port": tls_port, "own_names": service_names("eu-west-1"), "policy": policy, **options}
        proxies.append(ConnectProxy("127.0.0.1", **values))
        return await proxies[-1].start()

    yield start
    for proxy in proxies:
        await proxy.close()
        assert not proxy.num_connections


@contextlib.asynccontextmanager
async def connection(port, source="127.0.0.1"):
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def ask(port, head):
    """Send a head, then the given bytes; return the status and all bytes received after it."""
    async with connection(port) as (reader, writer):
        writer.write(head)
        status = await reader.readline()
        if b" 200 " in status:
            assert await reader.readline() == b"\r\n"
            writer.write(b"hello")
            writer.write_eof()
        return int(status.split()[1]) if status else None, await reader.read(-1)


def connect(name):
    return f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode("latin-1")


@pytest.mark.parametrize(
    "name",
    [
        "sts.eu-west-1.amazonaws.com:443",
        "sts.ap-south-1.amazonaws.com:443",
        "sts.amazonaws.com:443",
        "s3.eu-west-1.amazonaws.com:443",
        "metrics.sagemaker.eu-west-1.amazonaws.com:443",
        "STS.EU-WEST-1.AMAZONAWS.COM:443",
        "sts.eu-west-1.amazonaws.com.:443",
    ],
)
@pytest.mark.parametrize("has_internet", [True, False])
async def test_names_that_the_certificate_covers_reach_the_tls_port(start, name, has_internet):
    assert await ask(await start(has_internet=has_internet), connect(name)) == (200, b"tls:hello")


@pytest.mark.parametrize(
    "name",
    [
        "ec2.eu-west-1.amazonaws.com:443",
        "s3.us-east-1.amazonaws.com:443",
        "bucket.s3.us-east-1.amazonaws.com:443",
        "sts.evil.amazonaws.com:443",
        "amazonaws.com:443",
        "EC2.Amazonaws.Com.:443",
        "sts.cn-north-1.amazonaws.com.cn:443",
        "s3.dualstack.api.aws:443",
        "sts.eusc-de-east-1.amazonaws.eu:443",
    ],
)
async def test_other_names_of_aws_are_refused(start, monkeypatch, name):
    monkeypatch.setattr(
        connect_proxy, "CONNECT_TIMEOUT_S", 0.0
    )  # even if the name is not refused, no request leaves this machine
    status, body = await ask(await start(), connect(name))
    assert status == 403
    assert b"nothing meant for AWS leaves this machine" in body


@pytest.fixture
def public(monkeypatch):
    """Every name has a public address, and every connection to one reaches a fake server; the addresses asked for."""
    asked = []

    async def resolve(self, name, port, **_):
        return ["93.184.216.34"]

    async def open_public(addresses, port, *, source=""):
        if list(addresses) != ["93.184.216.34"]:
            return await opened(addresses, port, source=source)
        asked.append(port)
        raise ConnectionRefusedError("a fake of the internet")

    async def aws_has_bucket(name, addresses):
        asked.append(name.partition(".")[0])
        return not name.startswith("new.")

    opened = connect_proxy._open
    monkeypatch.setattr(bucket_probe, "aws_has_bucket", aws_has_bucket)
    monkeypatch.setattr(connect_proxy.Resolver, "resolve", resolve)
    monkeypatch.setattr(connect_proxy, "_open", open_public)
    return asked


async def has_bucket(bucket):
    if bucket == "broken":
        raise ObjectStoreError("the store does not answer")
    return bucket == "mine"


@pytest.mark.parametrize("host", ["s3.amazonaws.com", "s3.eu-west-1.amazonaws.com"])
@pytest.mark.parametrize("bucket", ["mine", "broken"])
async def test_a_bucket_of_this_service_is_served_here(start, public, host, bucket):
    port = await start(has_bucket=has_bucket)
    assert await ask(port, connect(f"{bucket}.{host}:443")) == (200, b"tls:hello")
    assert public == []


@pytest.mark.parametrize(
    "host",
    ["s3.amazonaws.com", "s3.eu-west-1.amazonaws.com", "s3.us-east-1.amazonaws.com", "s3-accelerate.amazonaws.com"],
)
async def test_a_bucket_that_is_not_here_is_a_name_of_the_internet(start, public, host):
    """Programs download public data sets from such names, for example torchvision's MNIST."""
    status, body = await ask(await start(has_bucket=has_bucket), connect(f"ossci-datasets.{host}:443"))
    assert (status, public) == (502, ["ossci-datasets", 443])
    assert b"a fake of the internet" in body


@pytest.mark.parametrize("host", ["s3.amazonaws.com", "s3.eu-west-1.amazonaws.com"])
async def test_a_bucket_that_an_old_client_is_about_to_make_is_made_here(start, public, host):
    port = await start(has_bucket=has_bucket)
    for _ in range(2):
        assert await ask(port, connect(f"new.{host}:443")) == (200, b"tls:hello")
    assert public == ["new"], "AWS is asked once"


async def test_without_the_internet_every_bucket_leads_here_and_aws_is_not_asked(start, public):
    port = await start(has_internet=False, has_bucket=has_bucket)
    assert await ask(port, connect("ossci-datasets.s3.amazonaws.com:443")) == (200, b"tls:hello")
    status, body = await ask(port, connect("ossci-datasets.s3.us-east-1.amazonaws.com:443"))
    assert (status, public) == (403, [])
    assert b"belongs to AWS" in body


async def test_a_name_of_aws_that_the_owner_names_is_connected(start, public):
    entries = ("s3.amazonaws.com:443", "ec2.eu-west-1.amazonaws.com:443")
    port = await start(*entries, has_bucket=has_bucket)
    for entry in entries:
        assert (await ask(port, connect(entry)))[0] == 502
    assert public == [443, 443]
    assert await ask(port, connect("s3.eu-west-1.amazonaws.com:443")) == (200, b"tls:hello")


async def test_a_plain_request_for_a_bucket_that_is_not_here_is_refused(start, public):
    head = b"GET http://ossci-datasets.s3.amazonaws.com/mnist HTTP/1.1\r\nHost: ossci-datasets.s3.amazonaws.com\r\n\r\n"
    assert (await ask(await start(has_bucket=has_bucket), head))[0] == 403
    assert public == []


@pytest.mark.parametrize("has_internet", [True, False])
async def test_a_listed_address_is_connected_and_no_other(start, elsewhere, has_internet):
    place = f"127.0.0.1:{elsewhere.port}"
    assert await ask(await start(place, has_internet=has_internet), connect(place)) == (200, b"elsewhere:hello")
    status, body = await ask(await start("127.0.0.1:1", has_internet=has_internet), connect(place))
    assert status == 403
    assert b"reachable_networks" in body
    assert elsewhere.num_connections == 1


async def test_the_service_s_own_ports_are_refused_even_if_they_are_listed(start, tls_port):
    port = await start(f"127.0.0.1:{tls_port}")
    status, _ = await ask(port, connect(f"127.0.0.1:{tls_port}"))
    assert status == 403
    status, _ = await ask(port, connect(f"127.0.0.1:{port}"))
    assert status == 403


async def test_names_that_only_look_like_names_of_the_service_are_refused(start, elsewhere):
    status, body = await ask(await start(has_internet=False), connect("sts.eu-west-1.amazonaws.com.evil.example:443"))
    assert status == 403
    assert b"setting internet" in body


async def test_an_unreachable_target_is_a_bad_gateway(start, elsewhere):
    await elsewhere.close()
    place = f"127.0.0.1:{elsewhere.port}"
    status, body = await ask(await start(place), connect(place))
    assert status == 502
    assert b"cannot be reached" in body
    await elsewhere.start()


async def test_a_hanging_target_is_a_bad_gateway_at_the_deadline(start, monkeypatch):
    async def hang(*args, **options):
        await asyncio.sleep(60)

    async with connection(await start("127.0.0.1:9")) as (reader, writer):
        monkeypatch.setattr(asyncio, "open_connection", hang)
        monkeypatch.setattr(connect_proxy, "CONNECT_TIMEOUT_S", 0.05)
        writer.write(connect("127.0.0.1:9"))
        assert b" 502 " in await reader.readline()


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "10.0.0.1"])
async def test_every_address_of_a_name_is_checked_before_any_connection(start, monkeypatch, address):
    async def resolve(self, name, port, **_):
        return ["93.184.216.34", address]

    async def never(*args, **options):
        raise AssertionError("nothing is connected")

    monkeypatch.setattr(connect_proxy.Resolver, "resolve", resolve)
    async with connection(await start()) as (reader, writer):
        monkeypatch.setattr(connect_proxy, "_open", never)
        writer.write(connect("innocent.example:443"))
        assert b" 403 " in await reader.readline()


async def test_a_name_is_resolved_once_and_the_checked_address_is_connected(start, elsewhere, monkeypatch):
    answers = [["127.0.0.1"], ["10.0.0.1"]]  # the second address must never be used

    async def resolve(self, name, port, **_):
        return answers.pop(0)

    monkeypatch.setattr(connect_proxy.Resolver, "resolve", resolve)
    port = await start(f"moving.example:{elsewhere.port}")
    assert await ask(port, connect(f"moving.example:{elsewhere.port}")) == (200, b"elsewhere:hello")
    assert answers == [["10.0.0.1"]]


@pytest.mark.parametrize(
    "name", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "2130706433"]
)
async def test_open_and_closed_ports_of_this_machine_are_refused_alike(start, elsewhere, name):
    """The responses are identical, and no connection is made, so their durations do not differ either."""
    proxy = await start()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listening
        ports = [elsewhere.port, closed.getsockname()[1]]
        answers = [await ask(proxy, connect(f"{name}:{port}")) for port in ports]
    assert [status for status, _ in answers] == [403, 403]
    assert len({body.replace(str(port).encode(), b"PORT") for port, (_, body) in zip(ports, answers, strict=True)}) == 1
    assert elsewhere.num_connections == 0


async def test_a_client_of_another_machine_reaches_only_names_of_the_service(start, elsewhere, monkeypatch):
    monkeypatch.setattr(connect_proxy, "_is_from_here", lambda writer: False)
    port = await start(f"127.0.0.1:{elsewhere.port}")
    status, body = await ask(port, connect(f"127.0.0.1:{elsewhere.port}"))
    assert status == 403
    assert b"its own machine only" in body
    assert await ask(port, connect("sts.amazonaws.com:443")) == (200, b"tls:hello")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET https://example.com/ HTTP/1.1\r\n\r\n",
        b"GET http://user@example.com/ HTTP/1.1\r\n\r\n",
        b"GET http://example.com:99999/ HTTP/1.1\r\n\r\n",
        b"CONNECT [fe80::1%25eth0]:80 HTTP/1.1\r\n\r\n",
        b"CONNECT example.com HTTP/1.1\r\n\r\n",
        b"CONNECT :443 HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:0 HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:65536 HTTP/1.1\r\n\r\n",
        b"CONNECT 127.0.0.1:99999999999999999999 HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:\xb2\xb3 HTTP/1.1\r\n\r\n",
        b"CONNECT ex\xe4mple.com:443 HTTP/1.1\r\n\r\n",
        b"CONNECT ex\x00mple.com:443 HTTP/1.1\r\n\r\n",
        b"CONNECT " + b"a" * 300 + b".com:443 HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:443\r\n\r\n",
        b"\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\r\n\r\n",
    ],
)
async def test_hostile_heads_get_a_response_and_the_proxy_continues(start, head):
    port = await start()
    status, body = await ask(port, head)
    assert status == 405
    assert b"only CONNECT HOST:PORT" in body
    assert await ask(port, connect("sts.amazonaws.com:443")) == (200, b"tls:hello")


@pytest.mark.parametrize("name", ["a..b:443", ".:443", "a" * 64 + ".example:443", "[::zz]:443", "999.1.1.1:443"])
async def test_names_that_can_not_be_resolved_do_no_harm(start, name):
    port = await start()
    status, _ = await ask(port, connect(name))
    assert status in (403, 405, 502)
    assert await ask(port, connect("sts.amazonaws.com:443")) == (200, b"tls:hello")


async def test_an_endless_head_is_cut_off(start):
    async with connection(await start()) as (reader, writer):
        with contextlib.suppress(OSError):
            writer.write(b"CONNECT x:1 HTTP/1.1\r\n" + b"X: y\r\n" * 20_000)
            await writer.drain()
            assert await reader.read(-1) == b""


async def test_a_client_that_never_finishes_its_head_is_dropped(start, monkeypatch):
    monkeypatch.setattr(connect_proxy, "HEAD_TIMEOUT_S", 0.05)
    async with connection(await start()) as (reader, writer):
        writer.write(b"CONNECT sts.amazonaws.com:443 HTTP/1.1\r\n")
        assert await reader.read(-1) == b""


async def test_each_direction_ends_separately(start):
    """The target ends its direction first: the client's later bytes still arrive, and vice versa."""
    said = asyncio.get_running_loop().create_future()

    async def speak_first(reader, writer):
        try:
            writer.write(b"bye")
            writer.write_eof()
            said.set_result(await reader.read(-1))
        finally:
            writer.close()

    server = await asyncio.start_server(speak_first, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, connection(await start(place)) as (reader, writer):
        writer.write(connect(place))
        assert await reader.read(-1) == b"HTTP/1.1 200 Connection established\r\n\r\nbye"
        writer.write(b"still here")
        writer.write_eof()
        assert await asyncio.wait_for(said, DEADLINE_S) == b"still here"


async def test_a_megabyte_passes_unchanged_both_ways(start):
    content = bytes(range(256)) * 4096
    async with connection(await start()) as (reader, writer):
        writer.write(connect("sts.amazonaws.com:443"))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(content)
        writer.write_eof()
        assert await reader.read(-1) == b"tls:" + content


async def test_an_idle_tunnel_ends(start, monkeypatch):
    monkeypatch.setattr(connect_proxy, "IDLE_TIMEOUT_S", 0.1)
    async with connection(await start()) as (reader, writer):
        writer.write(connect("sts.amazonaws.com:443"))
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(-1) == b""


async def test_connections_beyond_the_limit_are_refused_at_once(start, monkeypatch):
    monkeypatch.setattr(connect_proxy, "MAX_CONNECTIONS", 1)
    port = await start()
    async with connection(port) as (reader, writer):
        writer.write(connect("sts.amazonaws.com:443"))
        await reader.readuntil(b"\r\n\r\n")
        status, body = await ask(port, b"")
        assert status == 503
        assert b"127.0.0.1 has 1 connections" in body
    await asyncio.sleep(0)


JOB = "127.64.0.9"  # an address from which relays of jobs connect


async def test_a_job_that_connects_through_the_proxy_does_not_pass_for_the_owner(start):
    peers = asyncio.Queue()

    async def serve(_, writer):
        peers.put_nowait(writer.get_extra_info("peername")[0])
        writer.close()

    service = Acceptor(serve)
    port = await start(tls_port=service.start("127.0.0.1"))
    try:
        for source in (JOB, "127.0.0.1"):
            async with connection(port, source) as (_, writer):
                writer.write(connect("sts.amazonaws.com:443"))
                assert await asyncio.wait_for(peers.get(), DEADLINE_S) == source
    finally:
        await service.close()


async def test_connections_of_one_job_leave_room_for_others(start, monkeypatch):
    monkeypatch.setattr(connect_proxy, "MAX_CONNECTIONS", 8)
    port = await start()
    async with contextlib.AsyncExitStack() as stack:

        async def tunnel(source):
            reader, writer = await stack.enter_async_context(connection(port, source))
            writer.write(connect("sts.amazonaws.com:443"))
            return (await reader.readuntil(b"\r\n\r\n")).split()[1]

        assert [await tunnel(JOB) for _ in range(3)] == [b"200", b"200", b"503"]
        assert [await tunnel(source) for source in ("127.64.0.10", "127.0.0.1", "127.0.0.1")] == [b"200"] * 3


async def test_tunnels_of_another_user_are_closed_for_tunnels_of_the_service_s_own_user(start, monkeypatch):
    monkeypatch.setattr(connect_proxy, "MAX_CONNECTIONS", 8)
    users = iter([4711, 4711, 0, os.geteuid(), 0, 0, 4711])
    monkeypatch.setattr(local_users, "user_of", lambda client, end: next(users))
    port = await start()
    async with contextlib.AsyncExitStack() as stack:

        async def tunnel():
            reader, writer = await stack.enter_async_context(connection(port))
            writer.write(connect("sts.amazonaws.com:443"))
            return reader, (await reader.readuntil(b"\r\n\r\n")).split()[1]

        tunnels = [await tunnel() for _ in range(6)]
        assert [status for _, status in tunnels] == [b"200"] * 6
        for reader, _ in tunnels[:2]:  # tunnels of the other user
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        assert (await tunnel())[1] == b"503"
        assert not any(reader.at_eof() for reader, _ in tunnels[2:])


async def test_close_ends_all_connections(tls_port):
    proxy = ConnectProxy("127.0.0.1", tls_port=tls_port, own_names=service_names("eu-west-1"), has_internet=True)
    port = await proxy.start()
    async with connection(port) as (reader, writer):
        writer.write(connect("sts.amazonaws.com:443"))
        await reader.readuntil(b"\r\n\r\n")
        await proxy.close()
        assert await reader.read(-1) == b""
    with pytest.raises(OSError, match="onnect"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_that_is_in_use_is_an_error(start, tls_port):
    proxy = ConnectProxy("127.0.0.1", tls_port=1, own_names=frozenset(), has_internet=False)
    with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{tls_port}"):
        await proxy.start(tls_port)
    await proxy.close()


@pytest.mark.parametrize("num_turns", range(8))
async def test_a_connection_that_is_just_being_accepted_is_closed_with_the_proxy(tls_port, num_turns):
    proxy = ConnectProxy("127.0.0.1", tls_port=tls_port, own_names=frozenset(), has_internet=False)
    with socket.create_connection(("127.0.0.1", await proxy.start())) as client:
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await proxy.close()
        gc.collect()  # a transport that was not closed would warn here
        client.settimeout(DEADLINE_S)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
