"""A stand-in for the service as agents see it: a small HTTP server with `contract.agent_protocol`'s paths.

Where: tests of the agent run against it. It stores reports and log lines, and gives the orders that a test scripts, at
once or when the host reaches a phase. Methods simulate failures of a service: `kill` and `restart` (state is kept, as a
database would), `partition` and `heal` (packets vanish), `lose_answers` and `swallow_answers` (the request was carried
out, the answer did not arrive), `fail` (HTTP errors), `end_attempt`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import (
    AGENT_PATH,
    POOL_PATH,
    HostFacts,
    HostPhase,
    LogBatch,
    LogBlock,
    LogReceipt,
    Order,
    OrderKind,
    Report,
    ReportReceipt,
)
from clary.contract.launch_plan import LaunchPlan
from clary.contract.metric_samples import SampleBatch, SampleReceipt
from clary.contract.training_values import Finding, TrainingBatch, TrainingProgress, TrainingReceipt

WAIT_S = 10.0  # default timeout of the `wait_for_...` methods


@dataclass(frozen=True)
class Delivered:
    """A log line with the time at which it was stored, in seconds of `time.time`."""

    line: LogBlock  # of one line
    stored_at: float


class FakeService:
    """Serves one host of one attempt on a loopback port; a context manager.

    Args:
        plan: answer to `assignment`; `service_url` and `agent_token` are filled in.
        host: the only host whose agent is accepted.
        token: the accepted bearer token.
    """

    def __init__(self, plan: LaunchPlan, *, host: str = "algo-1", token: str = "fake-token") -> None:  # noqa: S107
        self.host = host
        self.token = token
        self.reports: list[Report] = []
        self.lines: list[Delivered] = []
        self.batches: list[SampleBatch] = []  # the host's measurements, each row once
        self.next_row = 0
        self.findings: list[Finding] = []  # the program's training records, each once
        self.next_finding = 0
        self.progress: TrainingProgress | None = None
        self.unauthorized: list[str] = []  # paths requested without the right token
        self._changed = threading.Condition()
        self._orders: list[Order] = []
        self._answers: dict[HostPhase, tuple[OrderKind, dict[str, Any]]] = {}
        self._is_over = False
        self._is_gone = False
        self._is_partitioned = False
        self._num_lost_answers: dict[str, int] = {}
        self._num_swallowed_answers: dict[str, int] = {}
        self._failures: list[tuple[str, int]] = []
        self._server: _Server | None = None
        self._serving: threading.Thread | None = None
        self._port = 0
        self.restart()
        self.plan = replace(plan, service_url=self.url, agent_token=token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """URL at which agents reach the service; unchanged by a restart."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def facts(self) -> HostFacts | None:
        """The newest facts of the host."""
        newest = max(self.reports, key=lambda report: report.number, default=None)
        return newest.facts if newest is not None else None

    @property
    def phases(self) -> list[HostPhase]:
        """Every phase that was reported, in order, without immediate repetitions."""
        phases: list[HostPhase] = []
        for report in sorted(self.reports, key=lambda report: report.number):
            if not phases or phases[-1] is not report.facts.phase:
                phases.append(report.facts.phase)
        return phases

    @property
    def texts(self) -> list[str]:
        """Every log line's text, in order."""
        return [item.line.text for item in self.lines]

    def order(self, kind: OrderKind, *, reason: str = "", grace_s: float = 0.0, **arguments: Any) -> int:
        """Give an order now; return its number.

        Args:
            kind: kind of the order.
            reason: text for the agent's log.
            grace_s: seconds from SIGTERM to SIGKILL.
            arguments: further fields of the order, as the protocol has them.
        """
        with self._changed:
            return self._give(kind, reason=reason, grace_s=grace_s, arguments=arguments)

    def order_at(self, phase: HostPhase, kind: OrderKind, *, grace_s: float = 0.0, **arguments: Any) -> None:
        """Give an order once, as soon as the host reports `phase`.

        Args: as `order`.
        """
        with self._changed:
            self._answers[phase] = (kind, {"grace_s": grace_s, "arguments": arguments})

    def lead_through_life(self) -> None:
        """Script the orders of a job that runs undisturbed: run, upload, release."""
        self.order_at(HostPhase.PREPARED, OrderKind.RUN)
        self.order_at(HostPhase.EXITED, OrderKind.UPLOAD, role="lead", staged=[])
        self.order_at(HostPhase.DONE, OrderKind.RELEASE, is_last=True)

    def wait_for(self, what: str, condition: Callable[[FakeService], object], timeout_s: float = WAIT_S) -> None:
        """Wait until `condition` holds; after `timeout_s`, raise AssertionError with `what` and the last facts.

        Args:
            what: description of the condition, for the error.
            condition: called with this service after each request.
            timeout_s: in seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: bool(condition(self)), timeout_s):
                raise AssertionError(f"{what}: not within {timeout_s} s; facts {self.facts}; log {self.texts[-20:]}")

    def wait_for_phase(self, phase: HostPhase, timeout_s: float = WAIT_S) -> HostFacts:
        """Wait until the host reports `phase`; return the facts of that report."""
        self.wait_for(f"phase {phase}", lambda service: phase in service.phases, timeout_s)
        return next(report.facts for report in self.reports if report.facts.phase is phase)

    def wait_for_text(self, text: str, timeout_s: float = WAIT_S) -> Delivered:
        """Wait for a log line that contains `text` and return it."""
        self.wait_for(f"log line {text!r}", lambda service: any(text in line for line in service.texts), timeout_s)
        return next(item for item in self.lines if text in item.line.text)

    def kill(self) -> None:
        """Stop as a killed process does: open connections break, new connections are refused."""
        server, self._server = self._server, None
        if server is None:
            return
        with self._changed:
            server.is_killed = True
            self._changed.notify_all()
        server.shutdown()
        server.server_close()
        server.break_connections()
        if self._serving is not None:
            self._serving.join(WAIT_S)

    def restart(self) -> None:
        """Restart on the same port with all stored data."""
        self._server = _Server(("127.0.0.1", self._port), self)
        self._port = self._server.server_address[1]
        self._serving = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="fake-service", daemon=True
        )
        self._serving.start()

    def partition(self) -> None:
        """Neither answer nor refuse any request from now on."""
        with self._changed:
            self._is_partitioned = True

    def heal(self) -> None:
        """End a partition; requests that waited in it are lost."""
        with self._changed:
            self._is_partitioned = False
            self._changed.notify_all()
        if self._server is not None:
            self._server.break_connections()

    def lose_answers(self, resource: str, count: int = 1) -> None:
        """Carry out the next `count` requests for `resource` (reports, logs, orders), then break their connections."""
        with self._changed:
            self._num_lost_answers[resource] = count

    def swallow_answers(self, resource: str, count: int = 1) -> None:
        """Carry out the next `count` requests for `resource` without answering, and leave their connections open."""
        with self._changed:
            self._num_swallowed_answers[resource] = count

    def num_swallowing(self, resource: str) -> int:
        """Return how many answers are still to be swallowed."""
        return self._num_swallowed_answers.get(resource, 0)

    def fail(self, resource: str, *, status: int = 500, count: int = 1) -> None:
        """Answer the next `count` requests for `resource` with an HTTP error, without carrying them out.

        Args:
            resource: reports, logs, samples, training, orders or assignment.
            status: status of the error.
            count: number of requests.
        """
        with self._changed:
            self._failures += [(resource, status)] * count

    def end_attempt(self, *, is_gone: bool = False) -> None:
        """Refuse all reports from now on; with `is_gone`, answer every request with HTTP 410."""
        with self._changed:
            self._is_over = True
            self._is_gone = is_gone
            self._changed.notify_all()

    def answer(self, resource: str, *, query: Mapping[str, str], body: Any, server: _Server) -> tuple[int, Any] | None:
        """Carry out one request of the HTTP handler; return its answer, or None to send no answer.

        Args:
            resource: last part of the path, such as reports.
            query: parameters of the URL.
            body: parsed JSON, or None.
            server: server that received the request; `kill` replaces it.
        """
        with self._changed:
            if self._is_partitioned:
                self._changed.wait_for(lambda: not self._is_partitioned or server.is_killed)
                return None
            if self._is_gone:
                return HTTPStatus.GONE, {"message": "the attempt is over"}
            for failure in self._failures:
                if failure[0] == resource:
                    self._failures.remove(failure)
                    return failure[1], {"message": "told to fail"}
            reply = self._carry_out(resource, query, body, server)
            self._changed.notify_all()
            if self._num_swallowed_answers.get(resource, 0) > 0:
                self._num_swallowed_answers[resource] -= 1
                self._changed.wait_for(lambda: server.is_killed)
                return None
            if self._num_lost_answers.get(resource, 0) > 0:
                self._num_lost_answers[resource] -= 1
                return None
            return None if server.is_killed else reply

    def _carry_out(self, resource: str, query: Mapping[str, str], body: Any, server: _Server) -> tuple[int, Any]:
        if resource == "assignment":
            return HTTPStatus.OK, to_plain(self.plan)
        if resource == "reports":
            return HTTPStatus.OK, to_plain(self._take_report(from_plain(Report, body)))
        if resource == "logs":
            return HTTPStatus.OK, to_plain(self._take_lines(from_plain(LogBatch, body)))
        if resource == "samples":
            return HTTPStatus.OK, to_plain(self._take_samples(from_plain(SampleBatch, body)))
        if resource == "training":
            return HTTPStatus.OK, to_plain(self._take_training(from_plain(TrainingBatch, body)))
        if resource == "orders":
            order = self._wait_for_order(int(query["after"]), float(query["wait_s"]), server)
            return (HTTPStatus.NO_CONTENT, None) if order is None else (HTTPStatus.OK, to_plain(order))
        return HTTPStatus.NOT_FOUND, {"message": f"no such resource: {resource}"}

    def _take_report(self, report: Report) -> ReportReceipt:
        self.reports.append(report)
        scripted = self._answers.pop(report.facts.phase, None)
        if scripted is not None:
            kind, details = scripted
            self._give(kind, reason="", grace_s=details["grace_s"], arguments=details["arguments"])
        return ReportReceipt(accepted=not self._is_over, order_number=len(self._orders))

    def _take_lines(self, batch: LogBatch) -> LogReceipt:
        if batch.first_sequence <= len(self.lines):
            lines = [replace(block, text=text) for block in batch.blocks for text in block.lines()]
            new = lines[len(self.lines) - batch.first_sequence :]
            self.lines += [Delivered(line, time.time()) for line in new]
        return LogReceipt(next_sequence=len(self.lines))

    def _take_samples(self, batch: SampleBatch) -> SampleReceipt:
        if batch.first_row >= self.next_row:  # a gap means that the agent has dropped rows
            self.batches.append(batch)
            self.next_row = batch.first_row + len(batch.at_ms)
        return SampleReceipt(next_row=self.next_row)

    def _take_training(self, batch: TrainingBatch) -> TrainingReceipt:
        self.findings += batch.findings[max(0, self.next_finding - batch.first) :]
        self.next_finding = max(self.next_finding, batch.first + len(batch.findings))
        self.progress = batch.progress or self.progress
        return TrainingReceipt(next=self.next_finding)

    def _wait_for_order(self, after: int, wait_s: float, server: _Server) -> Order | None:
        self._changed.wait_for(lambda: len(self._orders) > after or server.is_killed or self._is_partitioned, wait_s)
        # One order at a time, so that a test sees the agent carry out each; the real service may skip to the newest.
        return self._orders[after] if len(self._orders) > after else None

    def _give(self, kind: OrderKind, *, reason: str, grace_s: float, arguments: Mapping[str, Any]) -> int:
        number = len(self._orders) + 1
        self._orders.append(Order(number=number, kind=kind, reason=reason, grace_s=grace_s, arguments=arguments))
        self._changed.notify_all()
        return number


class _Server(ThreadingHTTPServer):
    """The HTTP server of the service between two restarts."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], service: FakeService) -> None:
        self.service = service
        self.is_killed = False
        self._sockets: set[socket.socket] = set()
        self._sockets_lock = threading.Lock()
        super().__init__(address, _Handler)

    @contextlib.contextmanager
    def tracking(self, sock: socket.socket) -> Iterator[None]:
        """Keep a connection in the list of open connections while it is served."""
        with self._sockets_lock:
            self._sockets.add(sock)
        try:
            yield
        finally:
            with self._sockets_lock:
                self._sockets.discard(sock)

    def break_connections(self) -> None:
        """Break every connection; the threads that serve them end."""
        with self._sockets_lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about disconnected clients."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        """Serve the connection until it ends."""
        with self.server.tracking(self.connection):
            super().handle()

    def do_GET(self) -> None:
        """Answer assignment and orders."""
        self._serve(None)

    def do_POST(self) -> None:
        """Answer reports, logs, samples and training records."""
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Log nothing."""

    def _serve(self, body: Any) -> None:
        service = self.server.service
        url = urlsplit(self.path)
        base = AGENT_PATH.format(job=service.plan.job_name, attempt=service.plan.attempt, host=service.host)
        pool = POOL_PATH.format(pool=service.plan.pool, host=service.host)
        token = service.plan.pool_token if url.path.startswith(pool + "/") else service.token
        reply: tuple[int, Any] | None
        if self.headers.get("Authorization") != f"Bearer {token}":
            service.unauthorized.append(self.path)
            reply = (HTTPStatus.FORBIDDEN, {"message": "wrong token"})
        elif url.path.startswith(pool + "/"):
            reply = (HTTPStatus.GONE, {"message": "the pool has ended"})
        elif not url.path.startswith(base + "/"):
            reply = (HTTPStatus.NOT_FOUND, {"message": f"expected {base}/..., got {url.path}"})
        else:
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            reply = service.answer(url.path[len(base) + 1 :], query=query, body=body, server=self.server)
        if reply is None:
            self.close_connection = True
            return
        status, answer = reply
        payload = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
