"""Hands the listening sockets of a service to the next one, so that no client is refused in between.

Where: `succession`. Clients that connect while no service accepts wait in the kernel's queue of the socket, for the
seconds until the next service answers: SDKs of 2026 repeat a refused connection for a tenth of a second only.

The next service makes the local socket `run/succession` in the state folder, which only its owner can enter, before it
asks the old one to leave. The old one connects to it and sends descriptors; the kernel keeps them after its end.

Source: unix(7), SCM_RIGHTS.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

NAME = "succession"
MOST_SOCKETS = 16
SEND_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)

Address = tuple[str, int]


class HandedSockets:
    """Listening sockets of an earlier service by address; each can be taken once.

    Args:
        sockets: the sockets, which belong to this object.
        turn: kept open until `close`, such as the file whose lock says that this process takes the other's place.
    """

    def __init__(self, sockets: Iterable[socket.socket] = (), *, turn: IO[bytes] | None = None) -> None:
        self._sockets = {_address(one): one for one in sockets}
        self._turn = turn

    def has(self, host: str, port: int) -> bool:
        """Whether a socket that listens on this very address is left."""
        return _numeric(host, port) in self._sockets

    def take(self, host: str, port: int) -> socket.socket | None:
        """Return the socket that listens on this address, which belongs to the caller from now on; or None."""
        return self._sockets.pop(_numeric(host, port), None)

    def close_port(self, port: int) -> None:
        """Close the sockets that listen on a port, so that it can be bound at another address."""
        for address in [address for address in self._sockets if address[1] == port]:
            self._sockets.pop(address).close()

    def close(self) -> None:
        """Close the sockets that nobody has taken, and let other services take the place of this one."""
        for one in self._sockets.values():
            one.close()
        self._sockets.clear()
        if self._turn is not None:
            self._turn.close()
            self._turn = None


class SocketInbox:
    """The place in a state folder to which an ending service sends its sockets; a context manager.

    Args:
        run_folder: folder `run` of the state folder.
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short_path(self._run_folder) as path:
                path.unlink(missing_ok=True)  # of a service that was killed while it waited
                listener.bind(str(path))
            listener.listen(1)
            self._listener = listener
        except OSError as error:
            listener.close()
            log.warning("%s/%s: no sockets can be handed over: %s", self._run_folder, NAME, error.strerror)
        return self

    def receive(self) -> list[socket.socket]:
        """Return the listening sockets that were sent until now, which may be no sockets at all."""
        if self._listener is None:
            return []
        self._listener.setblocking(False)
        try:
            connection, _ = self._listener.accept()
            with connection:
                connection.setblocking(False)
                _, descriptors, _, _ = socket.recv_fds(connection, 1, MOST_SOCKETS)
        except OSError:
            return []
        return [listening for one in descriptors if (listening := _listening(one)) is not None]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            self._listener.close()
            (self._run_folder / NAME).unlink(missing_ok=True)


def send_sockets(run_folder: Path, sockets: Iterable[socket.socket]) -> None:
    """Send listening sockets to the next service, if it waits for them.

    Args:
        run_folder: folder `run` of the state folder.
        sockets: sockets, of which this process keeps its own descriptors.
    """
    descriptors = [one.fileno() for one in sockets][:MOST_SOCKETS]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short_path(run_folder) as path:
            connection.settimeout(SEND_TIMEOUT_S)
            connection.connect(str(path))
            socket.send_fds(connection, [b"s"], descriptors)
    except OSError as error:
        log.info("no sockets are handed over: %s", error.strerror)


@contextlib.contextmanager
def _short_path(run_folder: Path) -> Iterator[Path]:
    """Yield a path of the local socket below the kernel's limit of 107 bytes, even if the folder's path is longer."""
    descriptor = os.open(run_folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{descriptor}/{NAME}")
    finally:
        os.close(descriptor)


def _listening(descriptor: int) -> socket.socket | None:
    """Return a descriptor as a socket that listens for TCP; close any other."""
    os.set_inheritable(descriptor, False)  # received ones are, also to programs that this service starts
    try:
        one = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
    is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
    if is_tcp and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return one
    one.close()
    return None


def _numeric(host: str, port: int) -> Address:
    """Return an address as the kernel names it, which knows no names such as `localhost`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
    except (OSError, UnicodeError):  # binding it fails too, and says why
        return host, port
    return str(found[0]), int(found[1])


def _address(listening: socket.socket) -> Address:
    host, port = listening.getsockname()[:2]
    return host, port
