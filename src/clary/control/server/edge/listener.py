"""The HTTP listener: reads a request, passes it to the first handler whose route matches, writes the answer.

Where: outermost part of the service. Below it: `clary_handler` (agents and the command line), `objects.front` (S3) and
`aws_handler` (every other AWS service). A second port with TLS has the same handlers.

    request -> signed for S3                       -> S3 front, streaming
            -> /clary/v1/..., GET /metrics         -> the health check here, other requests to clary_handler
            -> GET / of a browser, /console...     -> the console's files
            -> not signed and no API request       -> S3 front, which refuses it in S3's format
            -> everything else                     -> aws_handler, with its whole body

S3 comes first because a bucket may be called `clary`.

A handler's gate decides by a request's head whether its body is read. It is read if the client is known or names a
known key; of other clients, only a small body for a route that is open to everybody.

No request can crash the service: an error that a handler does not catch becomes a 500 with the request's id, and its
traceback is logged; a temporary failure becomes a 503 (`passing_troubles`). Broken HTTP is answered by the HTTP library
with 400 before any handler sees it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, cast

from aiohttp import web

from clary.base.errors import EngineError, Fault, WireError
from clary.control.server.edge import matching
from clary.control.server.edge.answers import (
    ListenerRequest,
    error_answer,
    make_request,
    new_request_id,
    refusal,
    whole_answer,
)
from clary.control.server.edge.bodies import BUSY_STATUS, read_body, too_large
from clary.control.server.edge.body_budget import BodyBudget, BodyTicket
from clary.control.server.edge.connection_table import ConnectionTable
from clary.control.server.edge.connections import MAX_HEAD_BYTES, GuardedConnection, GuardedServer, HandshakeSite
from clary.control.server.edge.gates import Admission, Gate, Refusal, admit_strangers
from clary.control.server.edge.handed_sockets import HandedSockets
from clary.control.server.edge.host_names import HostNames
from clary.control.server.edge.passing_troubles import why_not_now
from clary.control.wire.messages import HttpRequest, HttpResponse

BODY_TIMEOUT_S = 30.0  # limit for the whole body of an API request
MAX_LINE_BYTES = 16 * 1024  # length of a request line; presigned URLs are long
MAX_HEADER_BYTES = 16 * 1024  # length of one header
LINGER_S = 2.0  # time for which the rest of a refused body is discarded, so that the client can read the answer
KEEPALIVE_S = 75.0
READ_BUFFER_BYTES = 64 * 1024  # read buffer of a connection, which holds at most twice as many bytes
RECEIVE_BUFFER_BYTES = 512 * 1024  # receive buffer of a connection in the kernel
BODY_BUDGET_BYTES = 64 * 1024 * 1024
MAX_CONNECTIONS = 2048
MAX_HEADERS = 100
SHUTDOWN_S = 5.0
BACKLOG = 1024

_log = logging.getLogger(__name__)

ApiHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]
RequestHandler = Callable[["ListenerRequest"], Awaitable[web.StreamResponse]]


class StreamingHandler(Protocol):
    """Handler of S3 requests (objects.front.S3Front)."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""


@dataclass(frozen=True)
class Route:
    """One entry of the list of handlers."""

    name: str
    matches: Callable[[web.BaseRequest], bool]
    handle: RequestHandler


class Listener:
    """Serves all handlers on one port, and on a second one with TLS if a context is given.

    Args:
        host: address to listen on.
        port: 0 chooses a free port; read `port` after `start`.
        aws_handler: answers AWS requests other than S3.
        s3_front: answers S3 requests; started and closed by the caller.
        clary_handler: answers requests below /clary/v1/ other than the health check, and GET /metrics; None
            answers 404.
        console_handler: answers browsers that open / or /console; None leaves the paths to AWS and S3.
        max_body_bytes: largest body of a request that is not S3.
        aws_gate: gate for AWS requests, called before their bodies are read; None reads every body.
        clary_gate: likewise for clary_handler.
        host_names: names under which requests are answered; None answers under every name.
        body_budget: budget for bytes of bodies in memory; None creates a new budget.
        max_connections: maximum number of open connections.
        tls_context: certificate of the TLS port; None opens no such port.
        tls_port: 0 chooses a free port.
        nodes_host: further address of the TLS port, for other machines; empty adds none.
        body_timeout_s: seconds for the whole body of a request that is not S3.
        handed: sockets of an earlier service, which are used for their addresses; None: there are none.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        aws_handler: ApiHandler,
        s3_front: StreamingHandler,
        clary_handler: ApiHandler | None = None,
        console_handler: ApiHandler | None = None,
        max_body_bytes: int,
        aws_gate: Gate | None = None,
        clary_gate: Gate | None = None,
        host_names: HostNames | None = None,
        body_budget: BodyBudget | None = None,
        max_connections: int = MAX_CONNECTIONS,
        tls_context: ssl.SSLContext | None = None,
        tls_port: int = 0,
        nodes_host: str = "",
        body_timeout_s: float = BODY_TIMEOUT_S,
        handed: HandedSockets | None = None,
    ) -> None:
        self._host = host
        self._nodes_host = nodes_host
        self._wanted_port = port
        self._tls_context = tls_context
        self._wanted_tls_port = tls_port
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._host_names = host_names
        self._budget = body_budget or BodyBudget(BODY_BUDGET_BYTES)
        self._max_connections = max_connections
        self._runner: web.ServerRunner | None = None
        self._ports: list[int] = []
        self._handed = handed or HandedSockets()
        self.sockets: list[socket.socket] = []  # that listen
        self._version = _version()
        self.routes: Sequence[Route] = (
            Route("s3", matching.is_signed_for_s3, _settled(s3_front)),
            Route("health", matching.is_health, self._answer_health),
            Route("clary", matching.is_internal, self._api(clary_handler or _no_such_path, clary_gate)),
            *([] if console_handler is None else [self._console(console_handler)]),
            Route("s3-unsigned", matching.looks_like_s3, s3_front.handle),
            Route("aws", lambda _: True, self._api(aws_handler, aws_gate)),
        )

    @property
    def port(self) -> int:
        """The listening port; valid after `start`."""
        return self._ports[0]

    @property
    def tls_port(self) -> int | None:
        """TLS port of the listener, or None without TLS; valid after `start`."""
        return self._ports[1] if len(self._ports) > 1 else None

    async def start(self) -> None:
        """Listen.

        Raises: EngineError if an address cannot be bound; then nothing listens.
        """
        server = GuardedServer(
            self._dispatch,
            table=ConnectionTable(self._max_connections),
            request_factory=make_request,
            access_log=None,
            auto_decompress=False,  # objects are stored as sent, without decompression
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            read_bufsize=READ_BUFFER_BYTES,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        try:
            await self._listen(self._wanted_port, None)
            if self._tls_context is not None:
                await self._listen(self._wanted_tls_port, self._tls_context)
                if self._nodes_host and self._host not in (self._nodes_host, "0.0.0.0", "::"):  # noqa: S104 - compared
                    await self._listen(self._ports[1], self._tls_context, host=self._nodes_host)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening, give running requests a few seconds, close all connections."""
        if self._runner is not None:
            server = cast("GuardedServer", self._runner.server)
            transports = [one.transport for one in server.connections if one.transport is not None]
            await self._runner.cleanup()
            await server.abort_remaining(transports)
            self._runner = None
        self._ports.clear()
        self.sockets.clear()

    async def _listen(self, port: int, tls_context: ssl.SSLContext | None, *, host: str = "") -> None:
        assert self._runner is not None
        host = host or self._host
        if (listening := self._handed.take(host, port)) is None:
            self._handed.close_port(port)
            listening = self._bound(host, port)
        self._ports.append(listening.getsockname()[1])
        self.sockets.append(listening)
        await HandshakeSite(self._runner, listening, ssl_context=tls_context, backlog=BACKLOG).start()

    def _bound(self, host: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Each connection inherits the buffer size: otherwise the kernel may buffer up to 32 MiB of unread data for
            # each.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            listening.bind((host, port))
        except OSError as error:
            listening.close()
            raise EngineError(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it, or set another port",
                fault=Fault.USER,
                details={"host": host, "port": port},
            ) from error
        return listening

    async def _dispatch(self, request: ListenerRequest) -> web.StreamResponse:
        """Pass a request to the first route that matches; one of the places that may catch every exception."""
        request_id = request.clary_request_id = new_request_id()
        try:
            refused = self._head_refusal(request)
            if refused is not None:
                return refused
            for route in self.routes:
                if route.matches(request):
                    return await route.handle(request)
            raise AssertionError("the last route matches every request")
        except (ConnectionError, web.RequestPayloadError):
            raise  # the client has closed the connection
        except Exception as error:  # noqa: BLE001 - the HTTP edge, a named boundary
            if why := why_not_now(error):
                _log.warning("request %s: %s %s: %s", request_id, request.method, request.raw_path[:200], why)
                return refusal(request, WireError("ServiceUnavailable", why, http_status=BUSY_STATUS))
            _log.exception("request %s: %s %s failed", request_id, request.method, request.raw_path[:200])
            message = f"An internal error occurred; the service's log has it under request id {request_id}."
            return error_answer(request, 500, "InternalFailure", message)

    def _head_refusal(self, request: ListenerRequest) -> web.Response | None:
        """Return the refusal of a head before any handler is called; None if the head is acceptable."""
        size = sum(len(name) + len(value) for name, value in request.raw_headers)
        if size > MAX_HEAD_BYTES:
            return error_answer(
                request, 431, "RequestHeaderSectionTooLarge", f"headers have {MAX_HEAD_BYTES} bytes at most"
            )
        is_s3 = matching.is_signed_for_s3(request)
        length = request.content_length or 0
        if not is_s3 and length > self._max_body_bytes and not matching.looks_like_s3(request):
            return refusal(request, too_large(self._max_body_bytes))
        reason = self._host_names.why_refused(request.headers.get("Host")) if self._host_names is not None else None
        return None if reason is None else error_answer(request, 403, "MisdirectedRequest", reason)

    def _api(self, handler: ApiHandler, gate: Gate | None) -> RequestHandler:
        async def handle(request: ListenerRequest) -> web.StreamResponse:
            raw_path, _, query = request.raw_path.partition("?")
            head = HttpRequest(
                request.method,
                raw_path,
                query,
                list(request.headers.items()),
                remote=request.remote or "",
                is_secure=request.secure,
            )
            if gate is None:
                verdict: Admission | Refusal = Admission(
                    client=head.remote, max_body_bytes=self._max_body_bytes, is_known=False
                )
            else:
                verdict = gate(head)
            if isinstance(verdict, Refusal):
                await asyncio.sleep(verdict.delay_s)
                return whole_answer(request, verdict.answer)
            if verdict.is_known:
                settle(request)
            most = min(verdict.max_body_bytes, self._max_body_bytes)
            with BodyTicket(self._budget, verdict.client) as ticket:
                try:
                    body = await read_body(request, max_bytes=most, ticket=ticket, timeout_s=self._body_timeout_s)
                except WireError as error:
                    return refusal(request, error)
                return whole_answer(request, await handler(replace(head, body=body)))

        return handle

    def _console(self, handler: ApiHandler) -> Route:
        return Route("console", matching.is_console, self._api(handler, admit_strangers))

    async def _answer_health(self, request: ListenerRequest) -> web.StreamResponse:
        headers = {"X-Amzn-RequestId": request.clary_request_id}
        # Agents compare `now_s` with the clocks of their hosts.
        health = json.dumps({"status": "ok", "version": self._version, "now_s": time.time()}).encode()
        return web.Response(body=health, content_type="application/json", headers=headers)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for the service: uvloop's if it is installed (it is not on every platform)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _settled(front: StreamingHandler) -> RequestHandler:
    """Return a handler that passes requests signed for S3 to the front, and marks their clients as known.

    The front refuses a request without a known key at once, and does not read its body.
    """

    async def handle(request: ListenerRequest) -> web.StreamResponse:
        settle(request)
        return await front.handle(request)

    return handle


def settle(request: web.BaseRequest) -> None:
    """Record that a request's client is known, so that its connection is not evicted."""
    connection = request.protocol
    if isinstance(connection, GuardedConnection):
        connection.settle()


async def _no_such_path(request: HttpRequest) -> HttpResponse:
    body = json.dumps({"__type": "UnknownOperationException", "message": f"no such path: {request.raw_path[:200]}"})
    return HttpResponse(404, [("Content-Type", "application/json")], body.encode())


def _version() -> str:
    try:
        return version("clary")
    except PackageNotFoundError:
        return "unknown"
