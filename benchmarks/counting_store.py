"""An object store for a service whose reads are counted: SeaweedFS, and a gateway before it that writes requests down.

Where: `warm` asks how many objects a second run of the same job reads. The store's own metrics count HEAD as GET. The
gateway takes its time and holds objects in memory, so nothing is timed with it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from clary.control.objects import weed_process

KEY_ID, SECRET = "counted", "counted-store-of-a-benchmark"
START_TIMEOUT_S = 60.0
UPSTREAM_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "server", "date")


@dataclass
class CountingStore:
    """A running store; `requests` grows while it is used."""

    url: str
    requests: list[tuple[str, str]] = field(default_factory=list)  # method, path with query

    @property
    def settings(self) -> str:
        """The lines of settings.toml that have a service use it."""
        return f's3_endpoint_url = "{self.url}"\ns3_access_key_id = "{KEY_ID}"\ns3_secret_access_key = "{SECRET}"\n'

    def objects_read(self, since: int) -> list[str]:
        """Return the paths of the GETs of objects after the first `since` requests; lists of a bucket do not count."""
        gets = [urlsplit(path) for method, path in self.requests[since:] if method == "GET"]
        return [url.path for url in gets if "/" in url.path.strip("/") and "uploadId=" not in url.query]


@contextlib.contextmanager
def counting_store(bucket: str) -> Iterator[CountingStore]:
    """Start both, yield, stop both.

    Raises: SystemExit if the store does not answer within START_TIMEOUT_S.
    """
    with tempfile.TemporaryDirectory(prefix="clary-counted-") as folder, _weed(Path(folder), bucket) as upstream:
        store = CountingStore(url="")
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store, upstream))
        server.daemon_threads = True
        store.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, name="counting-store")
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            server.server_close()
            thread.join(STOP_TIMEOUT_S)


@contextlib.contextmanager
def _weed(folder: Path, bucket: str) -> Iterator[int]:
    """Run SeaweedFS in a folder; yields its S3 port."""
    ports = weed_process.choose_ports()
    command = weed_process.command(weed_process.find_program(), data_folder=folder, ports=ports, bucket=bucket)
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), **keys}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_until_ready(process, ports["s3"])
        yield ports["s3"]
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
        weed_process.remove_sockets(ports)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        connection = http.client.HTTPConnection(weed_process.HOST, port, timeout=1.0)
        try:
            connection.request("GET", "/status")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise SystemExit(f"weed does not answer on port {port} within {START_TIMEOUT_S:g} s; exit code {process.poll()}")


def _handler(store: CountingStore, upstream: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            store.requests.append((self.command, self.path))
            connection = http.client.HTTPConnection(weed_process.HOST, upstream, timeout=UPSTREAM_TIMEOUT_S)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():  # with the host that the client has signed
                    connection.putheader(name, value)
                connection.endheaders(body or None)
                answer = connection.getresponse()
                data = answer.read()
            finally:
                connection.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            length = answer.getheader("content-length") if self.command == "HEAD" else None
            self.send_header("content-length", length or str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

    return Handler
