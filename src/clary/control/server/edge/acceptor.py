"""Accepts connections and tracks each, so that `close` ends all of them.

Where: under `connect_proxy`. When `asyncio.Server` closes, it loses a connection that it is still accepting: the
transport is created some iterations of the loop later and is never closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

_BACKLOG = 100
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_OUT_OF_RESOURCES_PAUSE_S = 1.0  # the connection stays in the backlog, so an immediate retry would spin


class Acceptor:
    """Listens on an address and serves each connection in a task of its own.

    Args:
        serve: serves a connection, given its reader and writer, and closes the writer.
        limit: `limit` of the readers, as for `asyncio.StreamReader`, in bytes.
    """

    def __init__(
        self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], *, limit: int = 1 << 16
    ) -> None:
        self._serve = serve
        self._limit = limit
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_connections(self) -> int:
        """Number of open connections."""
        return len(self._tasks)

    @property
    def listening(self) -> socket.socket | None:
        """The listening socket; None unless it listens."""
        return self._listener

    def start(self, host: str, port: int = 0, *, listening: socket.socket | None = None) -> int:
        """Listen and return the port; 0 chooses a free port.

        Args:
            host: address to listen on.
            port: port.
            listening: socket that listens there already; None makes one.

        Raises: OSError if the port is not free or not permitted.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = listening or socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._watch()
        return int(self._listener.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end all connections; no connection is open when it returns."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _watch(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                log.warning("no connection can be accepted for %g s: %s", _OUT_OF_RESOURCES_PAUSE_S, error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                loop.call_later(_OUT_OF_RESOURCES_PAUSE_S, self._watch)
            return  # on other errors the client has closed the connection
        task = asyncio.create_task(self._run(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: connection.close())  # because the task may be cancelled before its first step

    async def _run(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=self._limit)
        await self._serve(reader, writer)
