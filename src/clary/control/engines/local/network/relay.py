"""The hosts' only way out: connections to relayed ports inside a host reach this service or a target the owner allows.

Where: the anchor of a job's network serves this in its event loop. A listening socket stays in the network namespace
in which it was made (a host's), while the sockets that this module opens belong to the anchor's own namespace (the
machine's). Programs inside therefore reach the service under the same URL as clients outside. They reach the targets
that the setting `reachable_networks` names with a port under the targets' own addresses. Bytes are forwarded as they
arrive, with bounded buffers; the end of one direction is forwarded as a half-close, and an aborted connection is
aborted on the other side too, so that a cut transfer never looks complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from typing import NamedTuple

BUFFER_BYTES = 256 * 1024  # per direction of a connection
BACKLOG = 1024
CONNECT_DEADLINE_S = 10.0  # covers a restart of the service
CONNECT_RETRY_S = 0.1
OUT_OF_RESOURCES_PAUSE_S = 0.1
_BIND_ADDRESS_NO_PORT = 24  # IP_BIND_ADDRESS_NO_PORT of linux/in.h, which Python 3.11 has no name for
MAX_CONNECTIONS = 4096  # concurrent ones per listener; more wait in the backlog until one ends
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close sends RST


class RelayTarget(NamedTuple):
    """Target of a relay's connections."""

    address: str
    port: int
    source: str = ""  # source address of connections; empty lets the machine choose
    rides_restarts: bool = True  # whether to retry for a while if nothing listens


def make_listener(port: int, *, address: str = "127.0.0.1") -> socket.socket:
    """Listen on a port of an address of the network namespace that the calling thread is in.

    Raises: OSError if the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


async def serve(listener: socket.socket, target: RelayTarget) -> None:
    """Pass every connection of `listener` on to `target` until cancelled."""
    loop = asyncio.get_running_loop()
    connections: set[asyncio.Task[None]] = set()
    try:
        while True:
            while len(connections) >= MAX_CONNECTIONS:
                await asyncio.wait(connections, return_when=asyncio.FIRST_COMPLETED)
            try:
                inner, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED):
                    raise
                await asyncio.sleep(OUT_OF_RESOURCES_PAUSE_S)
                continue
            task = asyncio.create_task(_relay(inner, target))
            connections.add(task)
            task.add_done_callback(connections.discard)
    finally:
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _relay(inner: socket.socket, target: RelayTarget) -> None:
    inner.setblocking(False)
    outer: socket.socket | None = None
    is_complete = False
    try:
        outer = await _connect(target)
        for connected in (inner, outer):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await _pump_both(inner, outer)
        is_complete = True
    except (OSError, TimeoutError):
        pass  # either side broke off; the other side gets a reset below
    finally:
        for side in (inner, outer):
            if side is not None:
                if not is_complete:
                    with contextlib.suppress(OSError):
                        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                side.close()


async def _connect(target: RelayTarget) -> socket.socket:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONNECT_DEADLINE_S
    while True:
        outer = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        outer.setblocking(False)
        try:
            if target.source:
                _bind_source(outer, target.source)
            async with asyncio.timeout_at(deadline):
                await loop.sock_connect(outer, (target.address, target.port))
        except ConnectionRefusedError:
            outer.close()
            if not target.rides_restarts or loop.time() + CONNECT_RETRY_S > deadline:
                raise
            await asyncio.sleep(CONNECT_RETRY_S)
        except BaseException:
            outer.close()
            raise
        else:
            return outer


def _bind_source(outer: socket.socket, source: str) -> None:
    """Bind a connection to a source address; if that fails, the machine's own address stays its source."""
    with contextlib.suppress(OSError):
        # The port is chosen at connect, per destination: otherwise 28,000 connections of all jobs exhaust the ports.
        outer.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        outer.bind((source, 0))


async def _pump_both(inner: socket.socket, outer: socket.socket) -> None:
    """Pass bytes both ways until both directions have ended; the first error ends both."""
    directions = [asyncio.create_task(_pump(inner, outer)), asyncio.create_task(_pump(outer, inner))]
    try:
        await asyncio.gather(*directions)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _pump(source: socket.socket, sink: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    buffer = memoryview(bytearray(BUFFER_BYTES))
    while count := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(sink, buffer[:count])
    sink.shutdown(socket.SHUT_WR)
