"""A small store: rank 0 serves keys and values over TCP to all ranks of a job.

Where: the NumPy adapter uses it; torch has its own store.

A connection begins with `handshake` in the role STORE, keyed by the job's secret. Without a secret, the handshake
prevents accidents but not attacks: a shared network needs CLARY_COLLECTIVE_SECRET. After the handshake, the client
sends any number of requests:

    request  operation (1), bytes of key (2), bytes of value (4), milliseconds to wait (4), key, value
    answer   found (1), bytes of value (4), value

The server answers a GET once the key is set or the time has passed. Its one thread serves all clients, and closes the
connection of a client that breaks a limit or the protocol.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time

from clary.train._native.errors import BootstrapError
from clary.train.collective.bootstrap.conversation import Conversation
from clary.train.collective.bootstrap.deadline import Deadline
from clary.train.collective.bootstrap.handshake import Credentials, Guest, Refused, Role, introduce
from clary.train.collective.bootstrap.store_server import (
    ANSWER,
    DELETE,
    FOUND,
    GET,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    REQUEST,
    SET,
    StoreServer,
)

_RETRY_S = 0.1  # seconds between attempts to connect, since rank 0 may start last
_GRACE_S = 10.0  # seconds to wait for the answer, in addition to the request's own wait
_HANDSHAKE_LIMIT_S = 10.0
_MAX_WAIT_S = 3600.0  # longest wait of one GET; a longer wait takes several requests
_MS = 1000  # per second


class TcpStore:
    """`store.Store` over one connection to rank 0. Calls from several threads are serialized.

    Args:
        address: MASTER_ADDR, an address of rank 0's host.
        port: MASTER_PORT or another port that is free on rank 0's host.
        secret: the job's secret; "" if it has no secret.
        timeout_s: longest wait for rank 0's start.

    Raises: BootstrapError if rank 0 did not start or has another secret, or if another program answers; on rank 0, if
    it cannot listen at the address.
    """

    def __init__(self, address: str, port: int, *, rank: int, secret: str, timeout_s: float) -> None:
        self._place = f"the store at {address} port {port}"
        self._turn = threading.Lock()
        self._sock: socket.socket | None = None
        credentials = Credentials(secret.encode(), "store", "")
        self._server = StoreServer(address, port, credentials) if rank == 0 else None
        try:
            self._sock = self._connect(address, port, rank, credentials, Deadline(timeout_s))
        except BaseException:
            self.close()
            raise

    def set(self, key: str, value: bytes) -> None:
        """Store `value`; a second call replaces it.

        Raises: BootstrapError if the store is not reachable; ValueError if the key or the value is too long.
        """
        self._ask(SET, key, value, 0.0)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait until `key` is set and return its value; raises TimeoutError, or BootstrapError as `set`."""
        deadline = Deadline(timeout_s)
        while True:
            answer = self._ask(GET, key, b"", min(deadline.remaining_s, _MAX_WAIT_S))
            if answer is not None:
                return answer
            if deadline.has_passed:
                raise TimeoutError(f"{self._place}: {key!r} was not set within {timeout_s:g} s")

    def delete(self, key: str) -> None:
        """Delete `key`. Raises BootstrapError as `set`."""
        self._ask(DELETE, key, b"", 0.0)

    def close(self) -> None:
        """Close the connection; on rank 0, end the store for all ranks. A second call does nothing."""
        self._hang_up()
        if self._server is not None:
            self._server.close()

    def _hang_up(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def _connect(self, address: str, port: int, rank: int, credentials: Credentials, limit: Deadline) -> socket.socket:
        while True:
            try:
                return self._greet(address, port, rank, credentials)
            except Refused as refusal:
                raise BootstrapError(
                    f"{self._place} is not one that rank {rank} can use: {refusal}. Check that all ranks have the "
                    "same CLARY_COLLECTIVE_SECRET and that no other program uses this port. "
                    "CLARY_COLLECTIVE_PORT chooses another",
                    culprit=0,
                    retryable=False,
                ) from refusal
            except OSError as error:
                if limit.has_passed:
                    raise BootstrapError(
                        f"rank {rank} cannot reach {self._place} after {limit.elapsed_s:.1f} s, the limit being "
                        f"{limit.limit_s:g} s: {error.strerror or error}. Was rank 0 started, is that its address, "
                        "and is the port open? CLARY_COLLECTIVE_CONNECT_TIMEOUT_S sets the limit",
                        culprit=0,
                    ) from error
                time.sleep(min(_RETRY_S, limit.remaining_s))

    @staticmethod
    def _greet(address: str, port: int, rank: int, credentials: Credentials) -> socket.socket:
        sock = socket.create_connection((address, port), timeout=_HANDSHAKE_LIMIT_S)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Conversation(sock, introduce(credentials, Guest(rank, Role.STORE), 0)).advance()
        except BaseException:
            sock.close()
            raise
        return sock

    def _ask(self, operation: int, key: str, value: bytes, wait_s: float) -> bytes | None:
        """Send one request and return the answer's value; None if the key is not set."""
        name = key.encode()
        if len(name) > MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES:
            raise ValueError(
                f"{self._place} takes keys of {MAX_KEY_BYTES} bytes and values of {MAX_VALUE_BYTES} at most, got "
                f"{len(name)} and {len(value)}"
            )
        with self._turn:
            sock = self._sock
            if sock is None:
                raise BootstrapError(f"{self._place} was closed or lost earlier; rank 0 runs the store", culprit=0)
            try:
                sock.settimeout(wait_s + _GRACE_S)
                request = REQUEST.pack(operation, len(name), len(value), int(wait_s * _MS))
                sock.sendall(request + name + value)
                found, length = ANSWER.unpack(_read(sock, ANSWER.size))
                answer = _read(sock, min(length, MAX_VALUE_BYTES))
            except OSError as error:
                self._hang_up()  # a request may have been sent in part
                raise BootstrapError(
                    f"{self._place} is lost: {error.strerror or error}. It lives in rank 0's process: has that ended?",
                    culprit=0,
                ) from error
        return answer if found == FOUND else None


def _read(sock: socket.socket, num_bytes: int) -> bytes:
    got = b""
    while len(got) < num_bytes:
        more = sock.recv(num_bytes - len(got))
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        got += more
    return got
