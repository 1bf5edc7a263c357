"""The server of `tcp_store`, which describes the protocol: one thread on rank 0."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from clary.train._native.errors import BootstrapError
from clary.train.collective.bootstrap.conversation import Conversation
from clary.train.collective.bootstrap.deadline import Deadline
from clary.train.collective.bootstrap.handshake import Credentials, Guest, Refused, Role, receive

SET, GET, DELETE = 1, 2, 3
REQUEST = struct.Struct("<BHII")
ANSWER = struct.Struct("<BI")
MISSING, FOUND = 0, 1
MAX_KEY_BYTES = 1024
MAX_VALUE_BYTES = 1 << 16
_MAX_KEYS = 1 << 16
_MAX_CLIENTS = 8192
_MAX_STRANGERS = 256  # maximum number of connections in handshake; a further one closes the oldest
_STRANGER_LIMIT_S = 10.0
_READ_BYTES = 1 << 16
_MS = 1000  # per second
_BACKLOG = 1024
_REST_S = 0.1  # pause after a failed accept, until descriptors may be free again
_TRANSIENT = {errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO}


@dataclass(eq=False)
class _Client:
    """A connection; `conversation` is None after its handshake."""

    sock: socket.socket
    conversation: Conversation[Guest] | None
    deadline: Deadline  # deadline of its handshake
    inbound: bytearray = field(default_factory=bytearray)
    outbound: bytearray = field(default_factory=bytearray)
    waits_for: str = ""  # key of a GET that still waits for its answer
    waits_until_s: float = 0.0  # time.monotonic


class _Nonsense(Exception):
    """A malformed request."""


class StoreServer:
    """Serves keys and values until `close`.

    Args:
        address: name or address of this host. If /etc/hosts maps it to loopback, or a router maps it to this host, the
            server listens on all addresses.

    Raises: BootstrapError if it cannot listen there, for example because the port is taken.
    """

    def __init__(self, address: str, port: int, credentials: Credentials) -> None:
        self._credentials = credentials
        self._values: dict[str, bytes] = {}
        self._clients: list[_Client] = []  # in the order of their connection
        self._listener = _listen(address, port)
        self._end, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._end, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="clary-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close all connections. A second call does nothing."""
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select(self._pause_s()):
                    if key.fileobj is self._end:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._serve_client(key.data)
                self._look_at_clock()
        finally:
            for sock in (*(client.sock for client in self._clients), self._listener, self._end):
                sock.close()
            self._selector.close()

    def _pause_s(self) -> float | None:
        now_s = time.monotonic()
        due = [client.deadline.remaining_s for client in self._clients if client.conversation]
        due += [client.waits_until_s - now_s for client in self._clients if client.waits_for]
        return max(0.0, min(due)) if due else None

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in _TRANSIENT:
                time.sleep(_REST_S)
            return
        if len(self._clients) >= _MAX_CLIENTS:
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        talk = receive(self._credentials, 0, lambda guest: guest.role is Role.STORE)
        client = _Client(sock, Conversation(sock, talk), Deadline(_STRANGER_LIMIT_S))
        self._clients.append(client)
        self._selector.register(sock, selectors.EVENT_READ, client)
        self._serve_client(client)
        strangers = [one for one in self._clients if one.conversation]
        if len(strangers) > _MAX_STRANGERS:
            self._hang_up(strangers[0])

    def _serve_client(self, client: _Client) -> None:
        """Read and write without blocking; close a connection that fails the handshake or breaks the protocol."""
        if client.sock.fileno() < 0:  # the connection was closed after the selector returned it
            return
        try:
            if client.conversation:
                if not client.conversation.advance():
                    return
                client.conversation = None
            self._flush(client)
            with contextlib.suppress(BlockingIOError):
                more = client.sock.recv(_READ_BYTES)
                if not more:
                    raise ConnectionResetError(errno.ECONNRESET, "it hung up")
                client.inbound += more
            self._take_requests(client)
        except (OSError, Refused, _Nonsense):
            self._hang_up(client)

    def _take_requests(self, client: _Client) -> None:
        while not client.waits_for and len(client.inbound) >= REQUEST.size:
            operation, key_bytes, value_bytes, wait_ms = REQUEST.unpack_from(client.inbound)
            if operation not in (SET, GET, DELETE) or not 0 < key_bytes <= MAX_KEY_BYTES:
                raise _Nonsense
            if value_bytes > MAX_VALUE_BYTES:
                raise _Nonsense
            end = REQUEST.size + key_bytes + value_bytes
            if len(client.inbound) < end:
                return
            key = bytes(client.inbound[REQUEST.size : REQUEST.size + key_bytes]).decode(errors="replace")
            value = bytes(client.inbound[REQUEST.size + key_bytes : end])
            del client.inbound[:end]
            self._carry_out(client, operation, key, value, wait_ms / _MS)
        if client.waits_for and len(client.inbound) > _READ_BYTES:
            raise _Nonsense

    def _carry_out(self, client: _Client, operation: int, key: str, value: bytes, wait_s: float) -> None:
        if operation == SET:
            if len(self._values) >= _MAX_KEYS and key not in self._values:
                raise _Nonsense
            self._values[key] = value
            self._answer(client, b"")
            for waiting in [one for one in self._clients if one.waits_for == key]:
                waiting.waits_for = ""
                self._answer_if_there(waiting, value)
        elif operation == DELETE:
            self._values.pop(key, None)
            self._answer(client, b"")
        elif key in self._values:
            self._answer(client, self._values[key])
        elif wait_s > 0:
            client.waits_for, client.waits_until_s = key, time.monotonic() + wait_s
        else:
            self._answer(client, None)

    def _answer_if_there(self, client: _Client, value: bytes | None) -> None:
        """Answer a waiting client, whose connection may have ended."""
        try:
            self._answer(client, value)
        except OSError:
            self._hang_up(client)

    def _answer(self, client: _Client, value: bytes | None) -> None:
        found = MISSING if value is None else FOUND
        client.outbound += ANSWER.pack(found, len(value or b"")) + (value or b"")
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        with contextlib.suppress(BlockingIOError):
            while client.outbound:
                del client.outbound[: client.sock.send(client.outbound)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.outbound else 0)
        self._selector.modify(client.sock, wanted, client)

    def _look_at_clock(self) -> None:
        now_s = time.monotonic()
        for client in list(self._clients):
            if client.conversation and client.deadline.has_passed:
                self._hang_up(client)
            elif client.waits_for and client.waits_until_s <= now_s:
                client.waits_for = ""
                self._answer_if_there(client, None)

    def _hang_up(self, client: _Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.sock)
            client.sock.close()


def _listen(address: str, port: int) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        here = str(place[0])
        is_indirect = address != here and address != "localhost" and (here.startswith("127.") or here == "::1")
        try:
            listener = socket.create_server(("" if is_indirect else here, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            listener = socket.create_server(("", port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise BootstrapError(
            f"rank 0 cannot serve the store at {address} port {port}: {error.strerror or error}. Is that this host's "
            f"address (MASTER_ADDR), and is the port free? CLARY_COLLECTIVE_PORT chooses another",
            culprit=0,
        ) from error
    listener.setblocking(False)
    return listener
