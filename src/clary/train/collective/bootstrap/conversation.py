"""A handshake on one socket.

Where: `meeting` and the server of `tcp_store` drive many handshakes on non-blocking sockets; the client of `tcp_store`
drives one on a blocking socket. A conversation never reads beyond the handshake, since the following bytes belong to
the later owner of the socket.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Generic

from clary.train.collective.bootstrap.handshake import Result, Talk


class Conversation(Generic[Result]):
    """Runs one `handshake` talk over one socket, without owning the socket."""

    def __init__(self, sock: socket.socket, talk: Talk[Result]) -> None:
        self.sock = sock
        self.result: Result | None = None
        self._talk = talk
        self._has_begun = False
        self._wanted = 0
        self._inbound = bytearray()
        self._outbound = b""

    @property
    def wants_to_write(self) -> bool:
        """Whether the talk waits for the socket to become writable; else it waits for bytes."""
        return not self._has_begun or bool(self._outbound)

    def advance(self) -> bool:
        """Continue until the socket would block; return True once the handshake has succeeded and `result` is set.

        After a non-blocking connect, make the first call when the socket has become writable.
        Raises: handshake.Refused; OSError if the connection failed or ended.
        """
        try:
            if not self._has_begun:
                self._begin()
            while True:
                if self._outbound:
                    self._outbound = self._outbound[self.sock.send(self._outbound) :]
                elif len(self._inbound) < self._wanted:
                    self._read()
                else:
                    self._resume()
        except BlockingIOError:
            return False
        except StopIteration as end:
            self.result = end.value
            return True

    def _begin(self) -> None:
        problem = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, os.strerror(problem))
        self._has_begun = True
        self._take(next(self._talk))

    def _read(self) -> None:
        more = self.sock.recv(self._wanted - len(self._inbound))
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was ended during the handshake")
        self._inbound += more

    def _resume(self) -> None:
        got, self._inbound = bytes(self._inbound), bytearray()
        self._take(self._talk.send(got) if self._wanted else next(self._talk))

    def _take(self, wish: int | bytes) -> None:
        self._wanted = wish if isinstance(wish, int) else 0
        self._outbound = wish if isinstance(wish, bytes) else b""
