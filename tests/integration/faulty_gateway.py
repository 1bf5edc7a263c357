"""An HTTP gateway in front of an object store that misbehaves on demand: FaultyGateway."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

UPSTREAM_TIMEOUT_S = 30


@dataclass
class Fault:
    """A fault that affects the next `times` requests for which `matches` is true."""

    kind: str  # busy, drop, lose_answer, cut, flip, stall
    matches: Callable[[str, str], bool] = lambda method, path: True
    times: int = 1
    after_bytes: int = 0  # for cut and stall: bytes of the body sent before the fault


@dataclass
class FaultyGateway:
    """A running gateway; `requests` lists (method, path, Range header) of every request."""

    url: str
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)

    def fail(self, kind: str, matches: Callable[[str, str], bool] = lambda method, path: True, **fields: int) -> None:
        """Let the next matching requests fail."""
        self.faults.append(Fault(kind, matches, **fields))

    def take_fault(self, method: str, path: str) -> Fault | None:
        """Return the fault for this request, and count it as used."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.matches(method, path):
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def faulty_gateway(upstream_url: str, *, tls: ssl.SSLContext | None = None):
    """Run a gateway to `upstream_url` on a port chosen by the kernel."""
    upstream = urlsplit(upstream_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = UPSTREAM_TIMEOUT_S

        def log_message(self, *args: object) -> None:
            """Suppress the log line."""

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            gateway.requests.append((self.command, self.path, self.headers.get("range", "")))
            fault = gateway.take_fault(self.command, self.path)
            kind = fault.kind if fault else ""
            if kind == "drop":
                self.close_connection = True
                return
            if kind == "busy":
                answer = b"<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
                self.send_response(503)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                return
            if kind == "flip":
                middle = len(body) // 2
                body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
            status, headers, data = self.forward(body)
            if kind == "lose_answer":
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                    self.send_header(name, value)
            length = {name.lower(): value for name, value in headers}.get("content-length", str(len(data)))
            self.send_header("content-length", length if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            if kind in ("cut", "stall"):
                assert fault is not None
                self.wfile.write(data[: fault.after_bytes])
                self.wfile.flush()
                if kind == "stall":
                    gateway.released.wait(UPSTREAM_TIMEOUT_S)
                self.close_connection = True
                return
            self.wfile.write(data)

        def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=UPSTREAM_TIMEOUT_S)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body or None)
                response = connection.getresponse()
                return response.status, response.getheaders(), response.read()
            finally:
                connection.close()

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

    class Server(ThreadingHTTPServer):
        daemon_threads = False

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore errors: clients that disconnect are part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "https" if tls else "http"
    gateway = FaultyGateway(f"{scheme}://localhost:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield gateway
    finally:
        gateway.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
