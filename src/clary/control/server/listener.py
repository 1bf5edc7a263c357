"""The one port: reads HTTP, gives each request to the first handler that wants it, writes the answer.

Where: outermost part of the service. Below it: `clary_handler` (agents and the command line), `objects.front` (S3) and
`aws_handler` (every other AWS service). A second port with TLS has the same handlers.

    request -> signed for S3                       -> S3 front, streaming
            -> /clary/v1/...                       -> health here, the rest to clary_handler
            -> /metrics                            -> the page for Prometheus
            -> GET / of a browser, /console...     -> the console's files
            -> not signed and no API request       -> S3 front, which refuses it in S3's shape
            -> everything else                     -> aws_handler, with its whole body

S3 comes first because a bucket may be called `clary`.

No request ends the service: what a handler does not catch becomes a 500 with the request's id, and the traceback goes
to the log. Broken HTTP is answered by the HTTP library with 400 before any handler sees it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDict

from clary.contract.errors import EngineError, Fault
from clary.control.wire.messages import HttpRequest, HttpResponse

HEALTH_PATH = "/clary/v1/health"
INTERNAL_PREFIX = "/clary/v1/"
METRICS_PATH = "/metrics"
CONSOLE_PATH = "/console"
BODY_TIMEOUT_S = 30.0  # for the whole body of an API request
MAX_LINE_BYTES = 16 * 1024  # request line; presigned URLs are long
MAX_HEADER_BYTES = 16 * 1024  # one header
LINGER_S = 2.0  # how long the rest of a refused body is thrown away, so that the client can read the answer
KEEPALIVE_S = 75.0
SHUTDOWN_S = 5.0
BACKLOG = 1024
API_CONTENT_TYPES = (
    "application/x-amz-json",
    "application/json",
    "application/x-www-form-urlencoded",
    "application/cbor",
)
JSON_ERROR_TYPE = "application/x-amz-json-1.1"

_log = logging.getLogger(__name__)

ApiHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]
RequestHandler = Callable[["ListenerRequest"], Awaitable[web.StreamResponse]]


class ListenerRequest(web.BaseRequest):
    """A request with an id of its own; `objects.front` puts the id into its answers too."""

    ATTRS = web.BaseRequest.ATTRS | frozenset({"clary_request_id"})
    clary_request_id = ""


class StreamingHandler(Protocol):
    """What answers S3 requests (objects.front.S3Front)."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""


@dataclass(frozen=True)
class Route:
    """One line of the list of handlers."""

    name: str
    matches: Callable[[web.BaseRequest], bool]
    handle: RequestHandler


class Listener:
    """Serves all handlers on one port, and on a second one with TLS if a context is given.

    Args:
        host: address to listen on.
        port: 0 takes a free one; read `port` after `start`.
        aws_handler: answers AWS requests other than S3.
        s3_front: answers S3 requests; started and closed by the caller.
        clary_handler: answers requests below /clary/v1/ other than the health check; None has none.
        metrics_handler: answers GET /metrics; None leaves the path to S3.
        console_handler: answers browsers that open / or /console; None leaves the paths to AWS and S3.
        max_body_bytes: largest body of a request that is not S3.
        tls_context: certificate of the TLS port; None has no such port.
        tls_port: 0 takes a free one.
        body_timeout_s: seconds for the whole body of a request that is not S3.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        aws_handler: ApiHandler,
        s3_front: StreamingHandler,
        clary_handler: ApiHandler | None = None,
        metrics_handler: ApiHandler | None = None,
        console_handler: ApiHandler | None = None,
        max_body_bytes: int,
        tls_context: ssl.SSLContext | None = None,
        tls_port: int = 0,
        body_timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        self._host = host
        self._wanted_port = port
        self._tls_context = tls_context
        self._wanted_tls_port = tls_port
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._runner: web.ServerRunner | None = None
        self._ports: list[int] = []
        self._health = json.dumps({"status": "ok", "version": _version()}).encode()
        self.routes: Sequence[Route] = (
            Route("s3", _is_signed_for_s3, s3_front.handle),
            Route("health", _is_health, self._answer_health),
            Route("clary", _is_internal, self._api(clary_handler or _no_such_path)),
            *([Route("metrics", _is_metrics, self._api(metrics_handler))] if metrics_handler is not None else []),
            *([Route("console", _is_console, self._api(console_handler))] if console_handler is not None else []),
            Route("s3-unsigned", _looks_like_s3, s3_front.handle),
            Route("aws", lambda _: True, self._api(aws_handler)),
        )

    @property
    def port(self) -> int:
        """The port that is listened on; valid after `start`."""
        return self._ports[0]

    @property
    def tls_port(self) -> int | None:
        """The TLS port that is listened on, None if there is none; valid after `start`."""
        return self._ports[1] if len(self._ports) > 1 else None

    async def start(self) -> None:
        """Listen.

        Raises: EngineError if an address can not be had; then nothing listens.
        """
        server = web.Server(
            self._dispatch,  # type: ignore[arg-type]  # the factory makes what it takes
            request_factory=_make_request,
            access_log=None,
            auto_decompress=False,  # an object is stored as it was sent
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            read_bufsize=256 * 1024,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        try:
            await self._listen(self._wanted_port, None)
            if self._tls_context is not None:
                await self._listen(self._wanted_tls_port, self._tls_context)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening, give requests under way a few seconds, close all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._ports.clear()

    async def _listen(self, port: int, tls_context: ssl.SSLContext | None) -> None:
        assert self._runner is not None
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, port))
        except OSError as error:
            listening.close()
            raise EngineError(
                f"can not listen on {self._host}:{port}: {error.strerror}; stop what uses it, or set another port",
                fault=Fault.USER,
                details={"host": self._host, "port": port},
            ) from error
        self._ports.append(listening.getsockname()[1])
        await web.SockSite(self._runner, listening, ssl_context=tls_context, backlog=BACKLOG).start()

    async def _dispatch(self, request: ListenerRequest) -> web.StreamResponse:
        """Give a request to the first route that matches; one of the named boundaries for broad except."""
        request_id = request.clary_request_id = _new_request_id()
        try:
            for route in self.routes:
                if route.matches(request):
                    return await route.handle(request)
            raise AssertionError("the last route takes everything")
        except (ConnectionError, web.RequestPayloadError):
            raise  # the client has gone: nobody to answer
        except Exception:  # noqa: BLE001 - the HTTP edge, a named boundary
            _log.exception("request %s: %s %s failed", request_id, request.method, request.raw_path[:200])
            message = f"An internal error occurred; the service's log has it under request id {request_id}."
            return _error(request, 500, "InternalFailure", message)

    def _api(self, handler: ApiHandler) -> RequestHandler:
        async def handle(request: ListenerRequest) -> web.StreamResponse:
            body = b""
            if request.body_exists:
                length = request.content_length
                if length is not None and length > self._max_body_bytes:
                    return self._too_large(request)
                try:
                    async with asyncio.timeout(self._body_timeout_s):
                        received = await self._read_body(request)
                except TimeoutError:
                    message = f"The request's body did not arrive within {self._body_timeout_s:.0f} s."
                    return _error(request, 408, "RequestTimeoutException", message)
                if received is None:
                    return self._too_large(request)
                body = received
            raw_path, _, query = request.raw_path.partition("?")
            answer = await handler(
                HttpRequest(
                    request.method,
                    raw_path,
                    query,
                    list(request.headers.items()),
                    body,
                    remote=request.remote or "",
                    is_secure=request.secure,
                )
            )
            headers = CIMultiDict(answer.headers)
            headers.setdefault("X-Amzn-RequestId", request.clary_request_id)
            return web.Response(status=answer.status, body=answer.body, headers=headers)

        return handle

    async def _read_body(self, request: web.BaseRequest) -> bytes | None:
        """Return the body, or None as soon as it is longer than the limit."""
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # What was written is no part of the answer, whose headers must still go out first.
            request.writer.output_size = 0
        pieces: list[bytes] = []
        num_bytes = 0
        while piece := await request.content.readany():
            num_bytes += len(piece)
            if num_bytes > self._max_body_bytes:
                return None
            pieces.append(piece)
        return b"".join(pieces)

    def _too_large(self, request: ListenerRequest) -> web.Response:
        message = f"The request's body is longer than {self._max_body_bytes} bytes."
        return _error(request, 413, "RequestEntityTooLarge", message)

    async def _answer_health(self, request: ListenerRequest) -> web.StreamResponse:
        headers = {"X-Amzn-RequestId": request.clary_request_id}
        return web.Response(body=self._health, content_type="application/json", headers=headers)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for the service: uvloop's if it is installed (it is not on every platform)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> ListenerRequest:
    return ListenerRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


def _is_health(request: web.BaseRequest) -> bool:
    return request.raw_path == HEALTH_PATH and request.method == "GET"


def _is_metrics(request: web.BaseRequest) -> bool:
    """Whether a scraper asks; S3's own requests for a bucket of that name are signed, and were taken before."""
    return request.method == "GET" and request.raw_path.partition("?")[0] == METRICS_PATH


def _is_console(request: web.BaseRequest) -> bool:
    """Whether a browser asks for the console: clients of AWS sign, name an action, or take no HTML."""
    path, _, query = request.raw_path.partition("?")
    if request.method not in ("GET", "HEAD") or "Authorization" in request.headers:
        return False
    if path == "/":
        return "text/html" in request.headers.get("Accept", "") and "Action=" not in query
    return path == CONSOLE_PATH or path.startswith(f"{CONSOLE_PATH}/")


def _is_internal(request: web.BaseRequest) -> bool:
    return request.raw_path.startswith(INTERNAL_PREFIX)


def _is_signed_for_s3(request: web.BaseRequest) -> bool:
    """Whether the scope of the signature, in headers or query, is S3's."""
    authorization = request.headers.get("Authorization")
    if authorization is not None:
        # Version 2, which starts so, belongs to S3 alone (and is refused there).
        return "/s3/aws4_request" in authorization or authorization.startswith("AWS ")
    query = request.raw_path.partition("?")[2]
    if "X-Amz-Credential=" in query:
        return "%2Fs3%2Faws4_request" in query or "/s3/aws4_request" in query
    return "AWSAccessKeyId=" in query and "Action=" not in query


def _looks_like_s3(request: web.BaseRequest) -> bool:
    """Whether a request that is not signed for S3 is no request of another AWS service either."""
    headers = request.headers
    query = request.raw_path.partition("?")[2]
    if "Authorization" in headers or "X-Amz-Target" in headers or "Action=" in query or "X-Amz-Credential=" in query:
        return False
    return not headers.get("Content-Type", "").startswith(API_CONTENT_TYPES)


async def _no_such_path(request: HttpRequest) -> HttpResponse:
    body = json.dumps({"__type": "UnknownOperationException", "message": f"no such path: {request.raw_path[:200]}"})
    return HttpResponse(404, [("Content-Type", "application/json")], body.encode())


def _error(request: ListenerRequest, status: int, code: str, message: str) -> web.Response:
    response = web.Response(
        status=status,
        body=json.dumps({"__type": code, "message": message}).encode(),
        content_type=JSON_ERROR_TYPE,
        headers={"X-Amzn-RequestId": request.clary_request_id, "X-Amzn-ErrorType": code},
    )
    if request.body_exists and not request.content.at_eof():
        response.force_close()  # the rest of the body would be taken for the next request
    return response


def _new_request_id() -> str:
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _version() -> str:
    try:
        return version("clary")
    except PackageNotFoundError:
        return "unknown"
