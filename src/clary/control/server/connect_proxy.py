"""An HTTPS proxy for clients that insist on AWS's own addresses, and for programs that want the internet.

Where: `clary env --tls` sets HTTPS_PROXY to it, so that https://sts.<region>.amazonaws.com ends at the service's TLS
port and no other shell or file of the user is touched; programs inside hosts, which have no route of their own, get it
through their relay when setting `internet` allows. Only CONNECT is answered:

    names that the certificate covers   -> the TLS port
    every other name below amazonaws.com -> refused: nothing meant for AWS leaves the machine
    everything else                      -> connected as asked, or refused where setting `internet` is off
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from clary.contract.errors import EngineError, Fault

log = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 10.0  # for a client to say what it wants
CONNECT_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 16 * 1024
PIECE_BYTES = 256 * 1024
CLOSE_TIMEOUT_S = 2.0
AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
OUR_SERVICES = frozenset(("sts", "s3", "sagemaker", "metrics.sagemaker", "logs", "monitoring", "iam"))


class ConnectProxy:
    """Listens on a port of its own; one task a connection.

    Args:
        host: address to listen on.
        tls_port: of the service, on the same address.
        has_internet: whether names outside AWS are connected.
    """

    def __init__(self, host: str, *, tls_port: int, has_internet: bool) -> None:
        self._host = host
        self._tls_port = tls_port
        self._has_internet = has_internet
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where the proxy answers; valid after `start`."""
        assert self._server is not None, "call start() first"
        return f"http://{self._host}:{self._server.sockets[0].getsockname()[1]}"

    async def start(self, port: int = 0) -> None:
        """Listen; port 0 takes a free one.

        Raises: EngineError if the port can not be had.
        """
        try:
            self._server = await asyncio.start_server(self._accept, self._host, port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            raise EngineError(f"can not listen on {self._host}:{port}: {error}", fault=Fault.USER) from error

    async def close(self) -> None:
        """Stop listening and break off what is connected."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("proxy: connection ended: %s", error)
        finally:
            self._tasks.discard(task)
            await _close(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        name, _, port = rest.partition(" ")[0].rpartition(":")
        if method != "CONNECT" or not name or not port.isdigit():
            await _answer(writer, "405 Method Not Allowed", "this proxy answers CONNECT HOST:PORT only")
            return
        target, refusal = self._choose(name.strip("[]").lower(), int(port))
        if target is None:
            await _answer(writer, "403 Forbidden", refusal)
            return
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                far_reader, far_writer = await asyncio.open_connection(*target)
        except (OSError, TimeoutError) as error:
            await _answer(writer, "502 Bad Gateway", f"{name}:{port} can not be reached: {error}")
            return
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            await _close(far_writer)

    def _choose(self, name: str, port: int) -> tuple[tuple[str, int] | None, str]:
        """Return where to connect, or None and why not."""
        if name.endswith(AWS_DOMAINS):
            labels = name.removesuffix(".amazonaws.com").split(".")
            service = "metrics.sagemaker" if labels[:2] == ["metrics", "sagemaker"] else labels[0]
            if service in OUR_SERVICES and name.endswith(".amazonaws.com"):
                return (self._host, self._tls_port), ""
            return None, f"{name} belongs to AWS and is not offered here; nothing meant for AWS leaves this machine"
        if not self._has_internet:
            return None, f"{name}: this service connects to nothing else (setting internet)"
        return (name, port), ""


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
