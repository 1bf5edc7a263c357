"""The agent's side of `contract.agent_protocol`: JSON over HTTP, with a connection for each kind of request.

Where: the supervisor of an attempt and its companions send everything through one `ServiceClient`. Each kind of request
has its own connection and is used by one thread, so that a long poll never delays a heartbeat. Every request is
idempotent (reports and lines are numbered), so after a broken connection a new connection is opened and the request is
sent again; the caller limits the retries, with `BackOff` for the pauses.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from clary.base.errors import AgentError, ContractError
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import (
    AGENT_PATH,
    POOL_PATH,
    LogBatch,
    LogReceipt,
    Order,
    PoolAssignment,
    Report,
    ReportReceipt,
)
from clary.contract.deep_profiles import HostProfile
from clary.contract.launch_plan import LaunchPlan
from clary.contract.metric_samples import SampleBatch, SampleReceipt
from clary.contract.stack_dumps import HostDump
from clary.contract.training_values import TrainingBatch, TrainingReceipt

REQUEST_TIMEOUT_S = 5.0  # timeout of a connect, and of each read of an answer
EXCERPT_CHARACTERS = 200  # characters of a refusal in the error's message

T = TypeVar("T")


class ServiceUnreachable(AgentError):
    """There was no answer, or an answer that asks for a later retry: the same request can succeed later."""


class ServiceRefused(AgentError):
    """The service has refused this request; `details["status"]` has the HTTP status."""


class AttemptOver(AgentError):
    """The service has ended this attempt: kill the program and leave."""


@dataclass(frozen=True, kw_only=True)
class AgentAddress:
    """The agent's host and attempt, and the URL of its service."""

    service_url: str
    job: str
    attempt: int
    host: str

    @property
    def path(self) -> str:
        """Path of this host below the service's URL."""
        below = AGENT_PATH.format(job=quote(self.job, safe=""), attempt=self.attempt, host=quote(self.host, safe=""))
        return urlsplit(self.service_url).path.rstrip("/") + below


@dataclass(frozen=True, kw_only=True)
class PoolAddress:
    """The agent's host and pool, and the URL of its service."""

    service_url: str
    pool: str
    host: str

    @property
    def path(self) -> str:
        """Path of this host below the service's URL."""
        below = POOL_PATH.format(pool=quote(self.pool, safe=""), host=quote(self.host, safe=""))
        return urlsplit(self.service_url).path.rstrip("/") + below


class BackOff:
    """Pauses between tries: doubled from `first_s` to `cap_s`, each with jitter from half to full length."""

    def __init__(self, *, first_s: float = 0.1, cap_s: float = 3.0) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the seconds to wait before the next try."""
        pause_s = self._next_s
        self._next_s = min(self._cap_s, pause_s * 2)
        return pause_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again from the shortest pause, after a success."""
        self._next_s = self._first_s


class ServiceClient:
    """Client of the service for one host.

    Threads: `report`, `next_order`, `send_logs`, `send_samples`, `send_dump`, `send_training` are each called by one
    thread at a time, `send_profile` and `send_trace` together by one thread, `fetch_assignment` before the thread of
    `next_order` starts, `encode_logs`, `wake_orders` and `break_off` by any thread.

    Args:
        address: URL of the service, job, attempt and host.
        token: bearer token of the attempt's agents.
        seen: adapts the plan of all hosts to this host's node (`node_view`); None: the plan is unchanged.
    """

    def __init__(
        self,
        address: AgentAddress,
        *,
        token: str,
        seen: Callable[[LaunchPlan, str], LaunchPlan] | None = None,
    ) -> None:
        self.address = address
        self._seen = seen
        self._reports = _Connection(address, token)
        self._orders = _Connection(address, token)
        self._logs = _Connection(address, token)
        self._dumps = _Connection(address, token)
        self._samples = _Connection(address, token)
        self._training = _Connection(address, token)
        self._profiles = _Connection(address, token)
        self._connections = (
            self._reports,
            self._orders,
            self._logs,
            self._dumps,
            self._samples,
            self._training,
            self._profiles,
        )

    def fetch_assignment(self) -> LaunchPlan:
        """Return the plan of this attempt.

        Raises: ServiceUnreachable, ServiceRefused, AttemptOver; ContractError for a plan that cannot be read.
        """
        plan = from_plain(LaunchPlan, self._orders.call("GET", "assignment"))
        return plan if self._seen is None else self._seen(plan, self.address.host)

    def report(self, report: Report, *, timeout_s: float = REQUEST_TIMEOUT_S) -> ReportReceipt:
        """Send the facts. Raises: ServiceUnreachable, ServiceRefused, AttemptOver."""
        body = _encode(to_plain(report))
        return _read(ReportReceipt, self._reports.call("POST", "reports", body=body, timeout_s=timeout_s))

    def next_order(self, after: int, *, wait_s: float) -> Order | None:
        """Wait up to `wait_s` for an order with a number above `after`; return it, or None on timeout.

        Raises: ServiceUnreachable (also if `wake_orders` aborted the wait), ServiceRefused, AttemptOver.
        """
        answer = self._orders.call(
            "GET", f"orders?after={after}&wait_s={wait_s:g}", timeout_s=wait_s + REQUEST_TIMEOUT_S
        )
        if not answer:
            return None
        order = _read(Order, answer)
        return order if order.number > after else None

    def encode_logs(self, batch: LogBatch) -> bytes:
        """Encode a batch for `send_logs`."""
        return _encode(to_plain(batch))

    def send_logs(self, body: bytes) -> LogReceipt:
        """Send an encoded batch of log lines. Raises: ServiceUnreachable, ServiceRefused, AttemptOver."""
        return _read(LogReceipt, self._logs.call("POST", "logs", body=body))

    def send_samples(self, batch: SampleBatch) -> SampleReceipt:
        """Send measured rows. Raises: ServiceUnreachable, ServiceRefused, AttemptOver."""
        return _read(SampleReceipt, self._samples.call("POST", "samples", body=_encode(to_plain(batch))))

    def send_training(self, batch: TrainingBatch) -> TrainingReceipt:
        """Send findings about the program's training. Raises: ServiceUnreachable, ServiceRefused, AttemptOver."""
        return _read(TrainingReceipt, self._training.call("POST", "training", body=_encode(to_plain(batch))))

    def send_dump(self, dump: HostDump) -> None:
        """Send a dump of the host's processes. Raises: ServiceUnreachable, ServiceRefused, AttemptOver."""
        self._dumps.call("POST", "dumps", body=_encode(to_plain(dump)))

    def send_profile(self, profile: HostProfile) -> None:
        """Send the ranks' reports of a profile. Raises: ServiceUnreachable, ServiceRefused, AttemptOver."""
        self._profiles.call("POST", "profiles", body=_encode(to_plain(profile)))

    def send_trace(self, piece: bytes, *, number: int, rank: int, offset: int, is_last: bool) -> None:
        """Send a part of a rank's trace. Raises: ServiceUnreachable, ServiceRefused, AttemptOver.

        Args:
            piece: bytes of the trace.
            number: of the profile.
            rank: rank of the trace.
            offset: of the piece in the trace, in bytes.
            is_last: whether the trace ends with this piece.
        """
        query = f"number={number}&rank={rank}&offset={offset}&last={int(is_last)}"
        self._profiles.call("POST", f"traces?{query}", body=piece)

    def wake_orders(self) -> None:
        """Abort the long poll in which another thread waits."""
        self._orders.abort()

    def break_off(self) -> None:
        """Abort every call, so that its thread can be joined; later calls raise ServiceUnreachable."""
        for connection in self._connections:
            connection.break_off()

    def close(self) -> None:
        """Close every connection; no thread may be in a call."""
        for connection in self._connections:
            connection.close()


class PoolClient:
    """Polls the service for the attempts of one host of a pool; one thread polls, any thread may abort the call."""

    def __init__(self, address: PoolAddress, *, token: str) -> None:
        self.address = address
        self._connection = _Connection(address, token)

    def next_assignment(self, after: str, *, wait_s: float) -> PoolAssignment | None:
        """Wait up to `wait_s` for an attempt other than `after`; return it, or None on timeout.

        Raises: ServiceUnreachable, ServiceRefused; AttemptOver when the pool has ended.
        """
        resource = f"assignment?after={quote(after, safe='')}&wait_s={wait_s:g}"
        answer = self._connection.call("GET", resource, timeout_s=wait_s + REQUEST_TIMEOUT_S)
        return None if answer is None else _read(PoolAssignment, answer)

    def break_off(self) -> None:
        """Abort the call in which another thread waits; later calls raise ServiceUnreachable."""
        self._connection.break_off()

    def close(self) -> None:
        """Close the connection; no thread may be in a call."""
        self._connection.close()


class _Connection:
    """One keep-alive connection, opened when needed."""

    def __init__(self, address: AgentAddress | PoolAddress, token: str) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._http: http.client.HTTPConnection | None = None
        # Guards `_http` against abort and close by other threads; a signal handler may call them in the thread that
        # holds the lock.
        self._lock = threading.RLock()
        self._is_closed = False

    def call(
        self, method: str, resource: str, *, body: bytes | None = None, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Any:
        """Return the answer's JSON, None for an answer without a body."""
        what = f"{method} {resource.partition('?')[0]}"
        try:
            status, answer = self._exchange(method, f"{self._address.path}/{resource}", body, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnreachable(
                f"agent of {self._address.host}: {what}: the service at {self._address.service_url} did not answer:"
                f" {type(error).__name__}: {error}; is it running?",
                retryable=True,
            ) from error
        if status == HTTPStatus.NO_CONTENT:
            return None
        if status != HTTPStatus.OK:
            raise self._refusal(what, status, answer)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise ServiceUnreachable(
                f"agent of {self._address.host}: {what}: expected JSON, got {answer[:EXCERPT_CHARACTERS]!r}",
                retryable=True,
            ) from error

    def abort(self) -> None:
        """Abort the call in which another thread waits, if any; the next call opens a new connection."""
        with self._lock:
            sock = self._http.sock if self._http is not None else None
            if sock is not None:
                # No close here, because the descriptor belongs to the thread that reads from it.
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def break_off(self) -> None:
        """Abort the current call and refuse later calls."""
        self._is_closed = True
        self.abort()

    def close(self) -> None:
        """Close the socket; no thread may be in a call."""
        self._is_closed = True
        self._drop()

    def _exchange(self, method: str, path: str, payload: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        is_reused = self._http is not None
        try:
            return self._exchange_once(method, path, payload, timeout_s)
        except (http.client.HTTPException, ConnectionError):
            # The service may have closed a kept connection meanwhile, which does not mean that it is unreachable now.
            if not is_reused or self._is_closed:
                raise
            return self._exchange_once(method, path, payload, timeout_s)

    def _exchange_once(self, method: str, path: str, payload: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        connection = self._open()
        try:
            assert connection.sock is not None
            connection.sock.settimeout(timeout_s)
            connection.request(method, path, body=payload, headers=self._headers)
            with connection.getresponse() as response:
                status, answer, keeps_open = response.status, response.read(), not response.will_close
        except BaseException:
            self._drop()
            raise
        if not keeps_open or self._is_closed:
            self._drop()
        return status, answer

    def _open(self) -> http.client.HTTPConnection:
        if self._http is not None:
            return self._http
        url = urlsplit(self._address.service_url)
        if url.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                url.netloc, timeout=REQUEST_TIMEOUT_S, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(url.netloc, timeout=REQUEST_TIMEOUT_S)
        connection.connect()
        with self._lock:
            if self._is_closed:
                connection.close()
                raise ConnectionAbortedError("the agent is leaving")
            self._http = connection
        return connection

    def _drop(self) -> None:
        with self._lock:
            connection, self._http = self._http, None
        if connection is not None:
            connection.close()

    def _refusal(self, what: str, status: int, answer: bytes) -> AgentError:
        message = (
            f"agent of {self._address.host}: {what}: the service answered HTTP {status}:"
            f" {answer[:EXCERPT_CHARACTERS].decode('utf-8', 'backslashreplace')}"
        )
        # The service refuses a Host header that its settings do not know before it looks at the token.
        details = {"status": status, "is_misdirected": b"MisdirectedRequest" in answer}
        if status == HTTPStatus.GONE:
            return AttemptOver(message, details=details)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            return ServiceUnreachable(message, retryable=True, details=details)
        return ServiceRefused(message, details=details)


def _encode(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _read(cls: type[T], answer: Any) -> T:
    """Parse a small answer; an invalid answer, perhaps of another service on the port, counts as unreachable."""
    try:
        return from_plain(cls, answer)
    except ContractError as error:
        raise ServiceUnreachable(f"the service's answer cannot be read: {error}", retryable=True) from error
