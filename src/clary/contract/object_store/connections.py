"""A pool of HTTP connections to one endpoint, shared by all threads of one client."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

from clary.base.errors import ContractError

_MAX_IDLE = 32  # further connections are closed after use
_SEND_BLOCK_BYTES = 1 << 18
_HTTP_PORT, _HTTPS_PORT = 80, 443


@dataclass(eq=False)
class PooledConnection:
    """A connection and whether it has carried an answer before."""

    http: http.client.HTTPConnection
    is_reused: bool = False
    # socket of the current request; kept because `http` drops it while an answer is still being read
    socket: socket.socket | None = None
    is_broken_off: bool = False

    def connect(self) -> None:
        """Connect if not yet connected. Raises: OSError, also after a call of `break_off`."""
        if self.http.sock is None:
            self.http.connect()
        self.socket = self.http.sock
        if self.is_broken_off:  # checked after the socket is set: `break_off` sets the flag before it reads the socket
            raise ConnectionAbortedError("broken off")

    def break_off(self) -> None:
        """Make another thread's current call on this connection fail now."""
        self.is_broken_off = True
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


class ConnectionPool:
    """Connections to the endpoint at `url`, http or https; a thread owns a connection until it returns it.

    Args:
        authorities: a file of certificates to trust; empty for this machine's.
    Raises: ContractError or ValueError for an invalid URL; OSError for a file that cannot be read.
    """

    def __init__(self, url: str, *, timeout_s: float, authorities: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ContractError(f"Object store endpoint {url!r}: expected http://host:port or https://host:port")
        self.base_path = parts.path.rstrip("/")
        self._is_tls = parts.scheme == "https"
        self._name = parts.hostname
        self._port = parts.port or (_HTTPS_PORT if self._is_tls else _HTTP_PORT)
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context(cafile=authorities or None) if self._is_tls else None
        self._lock = threading.Lock()
        self._idle: list[PooledConnection] = []
        self._taken: set[PooledConnection] = set()
        self._is_closed = False

    @property
    def host_header(self) -> str:
        """The Host header as it is signed: with the port, unless the scheme implies it."""
        name = f"[{self._name}]" if ":" in self._name else self._name
        is_implied = self._port == (_HTTPS_PORT if self._is_tls else _HTTP_PORT)
        return name if is_implied else f"{name}:{self._port}"

    def take(self, *, fresh: bool = False) -> PooledConnection:
        """Return the idle connection used last; without an idle one, or if `fresh`, return a new unconnected one.

        Raises: ConnectionAbortedError after `close`.
        """
        with self._lock:
            if self._is_closed:
                raise ConnectionAbortedError("broken off")
            connection = self._idle.pop() if self._idle and not fresh else self._new()
            self._taken.add(connection)
            return connection

    def give_back(self, connection: PooledConnection) -> None:
        """Keep a connection for reuse after its answer was read to the end."""
        connection.is_reused = True
        with self._lock:
            self._taken.discard(connection)
            if not self._is_closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return
        connection.http.close()

    def discard(self, connection: PooledConnection) -> None:
        """Close a connection that cannot be used again."""
        with self._lock:
            self._taken.discard(connection)
        connection.http.close()

    def drop_idle(self) -> None:
        """Close the idle connections: one of them was dead, so the others are suspect."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.http.close()

    def close(self) -> None:
        """Close idle connections and abort the exchanges on busy ones."""
        with self._lock:
            self._is_closed = True
            taken = tuple(self._taken)
        self.drop_idle()
        for connection in taken:
            connection.break_off()

    def _new(self) -> PooledConnection:
        if self._tls is None:
            plain = http.client.HTTPConnection(
                self._name, self._port, timeout=self._timeout_s, blocksize=_SEND_BLOCK_BYTES
            )
            return PooledConnection(plain)
        secure = http.client.HTTPSConnection(
            self._name, self._port, timeout=self._timeout_s, context=self._tls, blocksize=_SEND_BLOCK_BYTES
        )
        return PooledConnection(secure)
