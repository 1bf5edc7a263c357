"""Connections with limits on their number, on the time and length of a head, and on the time until an answer is read.

Where: the listener serves with `GuardedServer`. The HTTP library limits the length of a header and the number of
headers, but neither the time nor the total length of a head. `connection_table` decides which connections are accepted.
Times are the event loop's monotonic time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import Sequence
from typing import Any, cast

from aiohttp import web

from clary.control.process_limits import FILES_PER_CONNECTION, OTHER_FILES, connections_within
from clary.control.server.edge.connection_table import ConnectionTable, counted_address

HEAD_DEADLINE_S = 10.0  # from a request's first byte to the end of its headers; also until a connection's first byte
MAX_HEAD_BYTES = 64 * 1024  # request line and headers
ANSWER_DEADLINE_S = 60.0  # limit for a client to read an answer that is not streamed
MAX_REST_BYTES = 16 * 1024 * 1024  # of a refused body that are discarded, so that its client reads the answer
TLS_HANDSHAKE_S = 5.0
TLS_SHUTDOWN_S = 2.0  # wait for a client's answer when TLS is ended; the connection counts meanwhile
CLOSE_S = 0.5  # wait for all connections when the listener closes, before the remaining ones are aborted
LOG_EVERY_S = 10.0  # shortest time between log lines on refused connections

_log = logging.getLogger(__name__)


class GuardedServer(web.Server):
    """Makes guarded connections that share one table."""

    def __init__(self, *args: Any, table: ConnectionTable[GuardedConnection], **options: Any) -> None:
        super().__init__(*args, **options)
        self.table = table
        self._next_word_s = 0.0

    def __call__(self) -> web.RequestHandler:
        """Create the protocol object of one connection."""
        return GuardedConnection(self, loop=self._loop, **self._kwargs)

    def tell(self, text: str) -> None:
        """Log that a connection was evicted or refused, at most once per `LOG_EVERY_S`."""
        now_s = self._loop.time()
        if now_s >= self._next_word_s:
            self._next_word_s = now_s + LOG_EVERY_S
            _log.warning("%s (one such line in %g s is logged)", text, LOG_EVERY_S)

    async def abort_remaining(self, transports: Sequence[asyncio.Transport]) -> None:
        """Wait until all connections are closed, at most `CLOSE_S`, then abort the remaining ones without unsent bytes.

        An answer that a slow client still reads is sent on until the process ends.

        Args:
            transports: of the connections that were open before the server was shut down.
        """
        deadline_s = self._loop.time() + CLOSE_S
        while len(self.table) and self._loop.time() < deadline_s:  # noqa: ASYNC110 - the table has no event
            await asyncio.sleep(0.01)
        for transport in transports:
            # asyncio's TLS transport loses its protocol at a second close and cannot be asked; its TLS is ended
            # within TLS_SHUTDOWN_S.
            with contextlib.suppress(AttributeError):
                if transport.get_write_buffer_size() == 0:
                    transport.abort()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the loop's next turn


class GuardedConnection(web.RequestHandler):
    """One connection; the library's protocol with deadlines of its own."""

    __slots__ = ("_guarded_by", "_head_bytes", "_head_timer", "_is_answering", "_rest_bytes")

    def __init__(self, server: GuardedServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._guarded_by = server
        self._is_answering = False  # true from the end of a head to the end of its answer
        self._head_bytes = 0
        self._rest_bytes: int | None = None  # bytes discarded since an answer; None if no body is being discarded
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or refuse it with 503."""
        address = counted_address(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        arrival = self._guarded_by.table.arrive(self, address)
        if arrival.reason:
            self._guarded_by.tell(
                f"{arrival.reason}: a connection was {'refused' if not arrival.is_accepted else 'closed'}"
            )
        if arrival.evicted is not None:
            arrival.evicted.abort()
        if not arrival.is_accepted:
            self._force_close = True  # the request is not read
            writing = cast("asyncio.Transport", transport)
            writing.write(
                _answer("503 Service Unavailable", "too many connections; try again later", "Retry-After: 1\r\n")
            )
            writing.close()
            return
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._guarded_by.table.leave(self)
        self._end_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and count the bytes of an incomplete head."""
        if self._rest_bytes is not None:
            self._throw_away(data)
            return
        num_before = self._request_count
        self._parse(data)
        if self._request_count != num_before:
            self._is_answering = True
            self._head_bytes = 0
            self._end_waiting()
        elif data and not self._is_answering:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse("431 Request Header Fields Too Large", f"a head has {MAX_HEAD_BYTES} bytes at most")
            elif self._head_timer is None:
                self._wait_for_head()

    def _parse(self, data: bytes) -> None:
        """Parse bytes; the body of a request under way is read to its end also while the listener closes.

        The library drops all bytes from then on, so that the request would wait for its body until it is cancelled.
        """
        under_way, closes = self._current_request, (self._close, self._force_close)
        if not any(closes) or self.transport is None or under_way is None or under_way.content.is_eof():
            super().data_received(data)
            return
        self._close = self._force_close = False
        try:
            super().data_received(data)
        finally:
            self._close, self._force_close = self._close or closes[0], self._force_close or closes[1]

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; unless streamed, it has a deadline, and until it is read the connection may be evicted.

        If the request's body was not read to its end, the connection is closed after the answer.

        Args: as `aiohttp.web.RequestHandler.finish_response`.
        """
        try:
            if not isinstance(resp, web.Response):
                return await super().finish_response(request, resp, start_time)
            if not request.content.is_eof():
                resp.force_close()
            self._guarded_by.table.unsettle(self)
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            self.abort()
            return resp, True
        finally:
            self._guarded_by.table.unsettle(self)
            # The discarded rest of a body does not count as a head.
            has_rest = not request.content.is_eof()
            self._is_answering = bool(self._messages) or has_rest
            self._rest_bytes = 0 if has_rest else None

    def _throw_away(self, data: bytes) -> None:
        """Discard a piece of a body after the answer, unparsed; the library closes the connection after lingering_time.

        The library's parser would keep the bytes in memory, and would resume the reading that this class paused.
        """
        assert self._rest_bytes is not None
        self._rest_bytes += len(data)
        if self._rest_bytes > MAX_REST_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log an error; on a closed connection only at debug level: strangers can cause any number of such errors."""
        if self.transport is None:
            self.logger.debug(*args, **options)
        else:
            super().log_exception(*args, **options)

    def settle(self) -> None:
        """Record that a known client sent the present request, so that the connection is not evicted."""
        self._guarded_by.table.settle(self)

    def unsettle(self) -> None:
        """Record that the connection may be evicted although it serves a request."""
        self._guarded_by.table.unsettle(self)

    def abort(self) -> None:
        """Close at once and drop unsent bytes."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    def _wait_for_head(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_DEADLINE_S, self._end_late_head)

    def _end_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_late_head(self) -> None:
        self._head_timer = None
        if self._is_answering:
            return
        if self._head_bytes:
            self._refuse("408 Request Timeout", f"a request's head arrives within {HEAD_DEADLINE_S:g} s")
        else:
            self.abort()  # the client has sent no bytes

    def _refuse(self, status: str, text: str) -> None:
        self._end_waiting()
        if self.transport is not None:
            self.transport.write(_answer(status, text))
        self.force_close()


def _answer(status: str, text: str, headers: str = "") -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n{headers}"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def allowed_connections(wanted: int) -> int:
    """Return the number of connections that this process can serve; raise its limit of open files if necessary."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * FILES_PER_CONNECTION + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections_within(soft, wanted)


class HandshakeSite(web.SockSite):
    """A site with limits on the start and the end of TLS; connections are counted after the handshake."""

    async def start(self) -> None:
        """Listen."""
        await web.BaseSite.start(self)
        server = self._runner.server
        assert server is not None, "the runner was set up"
        self._server = await asyncio.get_running_loop().create_server(
            server,
            sock=self._sock,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=None if self._ssl_context is None else TLS_HANDSHAKE_S,
            ssl_shutdown_timeout=None if self._ssl_context is None else TLS_SHUTDOWN_S,
        )
