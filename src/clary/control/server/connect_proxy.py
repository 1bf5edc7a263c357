"""An HTTPS proxy for clients that insist on AWS's own addresses, and for programs that want the internet.

Where: `clary env --tls` sets HTTPS_PROXY to it, so that https://sts.<region>.amazonaws.com ends at the service's TLS
port and no other shell or file of the user is touched; programs inside hosts, which have no route of their own, get it
through their relay when setting `internet` allows. Only CONNECT is answered:

    names that the certificate covers -> the TLS port
    every other name of AWS           -> refused: nothing meant for AWS leaves the machine
    addresses of this machine         -> refused: they are not the internet
    everything else                   -> connected as asked by a client on this machine, or refused where setting
                                         `internet` is off; never a link-local address, where clouds keep credentials
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re

from clary.contract.errors import EngineError, Fault
from clary.control.server.acceptor import Acceptor

log = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 10.0  # for a client to say what it wants
CONNECT_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 16 * 1024
PIECE_BYTES = 256 * 1024
CLOSE_TIMEOUT_S = 2.0
MAX_PORT = 65535
# Of every partition; botocore, endpoints.json, dnsSuffix.
AWS_DOMAINS = (
    "amazonaws.com",
    "amazonaws.com.cn",
    "amazonaws.eu",
    "api.amazonwebservices.com.cn",
    "api.aws",
)
_REQUEST_LINE = re.compile(r"CONNECT (\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5}) HTTP/1\.[01]")


class ConnectProxy:
    """Listens on a port of its own; one task a connection.

    Args:
        host: address to listen on.
        tls_port: of the service, on the same address.
        own_names: names of AWS that lead to the TLS port; `*.` in front stands for one label, as in a certificate.
        has_internet: whether names outside AWS are connected.
    """

    def __init__(self, host: str, *, tls_port: int, own_names: frozenset[str], has_internet: bool) -> None:
        self._host = host
        self._tls_port = tls_port
        self._own_names = own_names
        self._has_internet = has_internet
        self._acceptor = Acceptor(self._serve_logged, limit=MAX_HEAD_BYTES)

    @property
    def num_connections(self) -> int:
        """How many clients are connected."""
        return self._acceptor.num_connections

    async def start(self, port: int = 0) -> int:
        """Listen and return the port; 0 takes a free one.

        Raises: EngineError if the port can not be had.
        """
        try:
            return self._acceptor.start(self._host, port)
        except OSError as error:
            raise EngineError(f"can not listen on {self._host}:{port}: {error}", fault=Fault.USER) from error

    async def close(self) -> None:
        """Stop listening and break off what is connected."""
        await self._acceptor.close()

    async def _serve_logged(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("proxy: connection ended: %s", error)
        finally:
            await _close(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        line = _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0].decode("latin-1"))
        if line is None or not 1 <= int(line[2]) <= MAX_PORT:
            await _answer(writer, "405 Method Not Allowed", "this proxy answers CONNECT HOST:PORT only")
            return
        name, port = line[1].strip("[]").lower().rstrip("."), int(line[2])
        target, refusal = self._choose(name, port, is_from_here=_is_from_here(writer))
        if target is None:
            await _answer(writer, "403 Forbidden", refusal)
            return
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                far_reader, far_writer = await asyncio.open_connection(*target)
        except (OSError, TimeoutError, UnicodeError) as error:  # a name like "a..b" has no encoding for DNS
            await _answer(writer, "502 Bad Gateway", f"{name}:{port} can not be reached: {error or 'no answer'}")
            return
        try:
            if not self._is_ours(name) and _is_own(far_writer):
                await _answer(writer, "403 Forbidden", f"{name} is this machine's own; only the internet is offered")
                return
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            await _close(far_writer)

    def _is_ours(self, name: str) -> bool:
        return name in self._own_names or f"*.{name.partition('.')[2]}" in self._own_names

    def _choose(self, name: str, port: int, *, is_from_here: bool) -> tuple[tuple[str, int] | None, str]:
        """Return where to connect, or None and why not."""
        if self._is_ours(name):
            return (self._host, self._tls_port), ""
        if f".{name}".endswith(tuple(f".{domain}" for domain in AWS_DOMAINS)):
            return None, f"{name} belongs to AWS and is not offered here; nothing meant for AWS leaves this machine"
        if not self._has_internet:
            return None, f"{name}: this service connects to nothing else (setting internet)"
        if not is_from_here:
            return None, f"{name}: this service connects clients on its own machine only"
        return (name, port), ""


def _is_own(writer: asyncio.StreamWriter) -> bool:
    """Whether a connection ended at this machine, or at a link-local address, where clouds keep keys."""
    peer = _address(writer, "peername")
    return peer.is_loopback or peer.is_link_local or peer == _address(writer, "sockname")


def _is_from_here(writer: asyncio.StreamWriter) -> bool:
    """Whether the client is on this machine: then both ends of the connection have one address, or it is loopback."""
    peer = _address(writer, "peername")
    return peer.is_loopback or peer == _address(writer, "sockname")


def _address(writer: asyncio.StreamWriter, end: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address of one end of a connection; one of IPv4 inside one of IPv6 is taken out."""
    address = ipaddress.ip_address(writer.get_extra_info(end)[0].partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end and pass the end on; the other direction goes on."""
    try:
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            if writer.can_write_eof():
                writer.write_eof()


async def _answer(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await writer.wait_closed()
