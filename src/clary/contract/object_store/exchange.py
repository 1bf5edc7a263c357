"""One signed S3 request and its answer, retried with back-off.

Where: all modules of this package send their requests through `Exchange`.

A request is retried if its connection cannot be made or breaks, after a timeout, after an answer whose HTTP status or
S3 error code is in `_RETRIED_STATUSES` or `_RETRIED_CODES`, and after an answer 400 that is not S3's own. A refusal
because of this machine's wrong clock is sent again with the store's time. Other refusals, such as 404, are not retried,
because the same request gets the same answer.
Source: Amazon S3 API reference, "Error responses".
"""

from __future__ import annotations

import hashlib
import http.client
import random
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from clary.base.clock import Clock
from clary.base.errors import Fault, ObjectStoreError
from clary.contract.launch_plan import Endpoint
from clary.contract.object_store import stored_names
from clary.contract.object_store.connections import ConnectionPool, PooledConnection
from clary.contract.object_store.store_time import StoreTime
from clary.contract.sigv4 import EMPTY_HASH, PATH_SAFE, SECURITY_TOKEN, UNRESERVED, sign

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing since Python 3.11

FIRST_PAUSE_S = 0.5  # five attempts then span 4 to 8 seconds, enough for a restart of the store
MAX_PAUSE_S = 10.0
_NUM_THREADS = 8  # threads for ranges and parts of all transfers together
_MAX_ANSWER_BYTES = 64 << 20  # limit of an XML answer; a page of a listing has about 1 MB
_MAX_ERROR_BYTES = 64 << 10
_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 509})
_RETRIED_CODES = frozenset(
    {
        "RequestTimeout",
        "SlowDown",
        "InternalError",
        "OperationAborted",
        "ServiceUnavailable",
        "BadDigest",  # the body was damaged in transit
        "XAmzContentSHA256Mismatch",
    }
)
_CONNECTION_ERRORS = (OSError, http.client.HTTPException)
_COPY_SOURCE = "x-amz-copy-source"
_DEAD_CONNECTION_ERRORS = (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class S3Request:
    """A request to the store; an empty key addresses the bucket."""

    method: str
    bucket: str
    key: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names
    body: bytes | memoryview | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.method} s3://{self.bucket}/{self.key}"


class Trouble(Exception):
    """The failure of one attempt; `Exchange.retrying` turns a lasting one into an ObjectStoreError."""

    def __init__(self, reason: str, *, status: int | None = None, code: str = "", is_retryable: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.code = code
        self.is_retryable = is_retryable


class BrokenOff(Trouble):
    """The client of the store was closed during a request."""

    def __init__(self) -> None:
        super().__init__("broken off, because this client of the object store was closed", is_retryable=False)


class S3Response:
    """An answer of the 2xx family whose body is still to be read; a context that returns its connection to the pool."""

    def __init__(self, response: http.client.HTTPResponse, connection: PooledConnection, pool: ConnectionPool) -> None:
        self._response = response
        self._connection = connection
        self._pool = pool
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def content_length(self) -> int | None:
        """Length of the body as the answer declares it; None if it declares no length."""
        declared = self.headers.get("content-length", "")
        return int(declared) if declared.isdigit() else None

    def readinto(self, buffer: memoryview) -> int:
        """Fill `buffer` from the body and return the number of bytes, 0 at its end.

        A body with fewer bytes than its answer declares may end without an error, so callers count bytes.
        Raises: Trouble for a broken connection.
        """
        try:
            return self._response.readinto(buffer)
        except _CONNECTION_ERRORS as error:
            raise Trouble(f"the connection broke within the answer: {_words(error)}") from error

    def read_all(self, *, max_bytes: int = _MAX_ANSWER_BYTES) -> bytes:
        """Return the whole body. Raises: Trouble if the connection breaks or the body has more than `max_bytes`."""
        try:
            data = self._response.read(max_bytes + 1)
        except _CONNECTION_ERRORS as error:
            raise Trouble(f"the connection broke within the answer: {_words(error)}") from error
        if len(data) > max_bytes:
            raise Trouble(f"the answer has more than {max_bytes} bytes", is_retryable=False)
        declared = self.content_length
        if declared is not None and len(data) < declared and self._response.length != 0:
            raise Trouble(f"the answer broke off after {len(data)} of {declared} bytes")
        return data

    def close(self) -> None:
        """Keep the connection if the body was read to its end, close it otherwise."""
        if self._response.isclosed() and not self._response.will_close:
            self._pool.give_back(self._connection)
        else:
            self._response.close()
            self._pool.discard(self._connection)


class Exchange:
    """Sends requests to one endpoint; safe for many threads at once."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        attempts: int,
        clock: Clock,
        sleep: Callable[[float], object] | None,
        session_token: str = "",
        authorities: str = "",
    ) -> None:
        self._endpoint = endpoint
        self._pool = ConnectionPool(endpoint.url, timeout_s=timeout_s, authorities=authorities)
        self._own_headers = {"host": self._pool.host_header}
        if session_token:
            self._own_headers[SECURITY_TOKEN] = session_token
        self._attempts = attempts
        self._time = StoreTime(clock)
        self._is_closed = threading.Event()
        self._sleep = sleep or self._is_closed.wait
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    @property
    def attempts(self) -> int:
        """Number of attempts of a request, including the first."""
        return self._attempts

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed.is_set()

    def close(self) -> None:
        """Abort all requests, close all connections and end all threads."""
        with self._lock:
            self._is_closed.set()
            executor, self._executor = self._executor, None
        self._pool.close()
        if executor is not None:
            executor.shutdown(wait=True)  # submitted actions then fail at their next request

    def submit(self, action: Callable[[], T], request: S3Request) -> Future[T]:
        """Run `action`, which sends `request`, in one of the threads shared by all transfers.

        Raises: ObjectStoreError after `close`.
        """
        with self._lock:
            if self._is_closed.is_set():
                raise store_error(request, BrokenOff(), attempts=0)
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="s3")
            return self._executor.submit(action)

    def send(self, request: S3Request) -> tuple[Mapping[str, str], bytes]:
        """Send a request and return headers and body of its answer.

        Raises: ObjectStoreError if the store refused the request, or answered no attempt.
        """

        def attempt() -> tuple[Mapping[str, str], bytes]:
            with self.once(request) as response:
                return response.headers, response.read_all()

        return self.retrying(attempt, request)

    def once(self, request: S3Request) -> S3Response:
        """Send a request once; the caller reads the answer and closes it.

        Raises: Trouble; ObjectStoreError (fault USER) for a key that is not UTF-8.
        """
        target, query = self._target(request)
        url = f"{target}?{query}" if query else target
        connection = self._take()
        while True:
            headers = self._signed_headers(request, target, query)
            try:
                response = _exchange_once(connection, request, url, headers)
                break
            except _CONNECTION_ERRORS as error:
                self._pool.discard(connection)
                if connection.is_reused and isinstance(error, _DEAD_CONNECTION_ERRORS):
                    # The store closed the idle connection; this does not count as a failure of the request.
                    self._pool.drop_idle()
                    connection = self._take(fresh=True)
                    continue
                raise Trouble(f"no answer from {self._endpoint.url}: {_words(error)}") from error
            except BaseException:
                self._pool.discard(connection)
                raise
        answer = S3Response(response, connection, self._pool)
        if response.status // 100 == 2:
            return answer
        with answer:
            trouble = _refusal(request, answer)
        if self._time.learn(response.status, trouble.code, answer.headers.get("date")):
            trouble.is_retryable = True
        raise trouble

    def retrying(self, action: Callable[[], T], request: S3Request) -> T:
        """Run `action` until it ends without Trouble, at most `attempts` times.

        Args:
            request: the request that the action sends, for the error.
        Raises: ObjectStoreError with bucket, key, status and attempts in its details.
        """
        for number in range(1, self._attempts + 1):
            try:
                return action()
            except Trouble as trouble:
                if self._is_closed.is_set():
                    raise store_error(request, BrokenOff(), attempts=number) from trouble
                if not trouble.is_retryable or number == self._attempts:
                    raise store_error(request, trouble, attempts=number) from trouble
            self.pause(number)
        raise AssertionError("attempts is at least 1")

    def pause(self, number: int) -> None:
        """Wait after the attempt with this number, counted from 1: longer each time, capped, with jitter."""
        longest = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (number - 1))
        self._sleep(longest * random.uniform(0.5, 1.0))

    def _take(self, *, fresh: bool = False) -> PooledConnection:
        try:
            return self._pool.take(fresh=fresh)
        except ConnectionAbortedError as error:
            raise BrokenOff from error

    def with_keys(self, document: bytes) -> bytes:
        """Return an XML document of the store with the keys of the objects that it names."""
        return stored_names.with_keys(document) if self._endpoint.aliases_keys else document

    def _target(self, request: S3Request) -> tuple[str, str]:
        key, asked = request.key, list(request.query.items())
        if self._endpoint.aliases_keys:
            key, asked = stored_names.stored_name(key), stored_names.stored_query(asked)
        try:
            path = f"{self._pool.base_path}/{quote(request.bucket, safe=UNRESERVED, errors='strict')}"
            if key:
                path += f"/{quote(key, safe=PATH_SAFE, errors='strict')}"
        except UnicodeEncodeError as error:
            text = ascii(f"s3://{request.bucket}/{request.key}")
            raise ObjectStoreError(
                f"{request.method} {text}: S3 keys are UTF-8 text and this one is not. Rename the file.",
                fault=Fault.USER,
                details={"bucket": request.bucket, "key": ascii(request.key)},
            ) from error
        pairs = [f"{quote(name, safe=UNRESERVED)}={quote(value, safe=UNRESERVED)}" for name, value in asked]
        return path, "&".join(pairs)

    def _signed_headers(self, request: S3Request, target: str, query: str) -> dict[str, str]:
        """Return headers with a signature over the whole request, including the body's hash."""
        headers = {**self._own_headers, **request.headers}
        if self._endpoint.aliases_keys and _COPY_SOURCE in headers:
            headers[_COPY_SOURCE] = stored_names.stored_copy_source(headers[_COPY_SOURCE])
        payload_hash = hashlib.sha256(request.body).hexdigest() if request.body else EMPTY_HASH
        signature = sign(
            request.method,
            target,
            query,
            headers,
            payload_hash,
            credentials=self._endpoint.credentials,
            region=self._endpoint.region,
            service="s3",
            now=self._time.now(),
        )
        return {**headers, **signature}


def _exchange_once(
    connection: PooledConnection, request: S3Request, url: str, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    connection.connect()
    try:
        connection.http.request(request.method, url, body=request.body, headers=headers)
    except (BrokenPipeError, ConnectionResetError) as error:
        # A store that refuses a request because of the request's headers closes the connection while the body is being
        # sent; its answer can still be read.
        try:
            return connection.http.getresponse()
        except _CONNECTION_ERRORS:
            raise error from None
    return connection.http.getresponse()


def error_facts(body: bytes) -> tuple[str, str]:
    """Return code and message of an S3 error document; empty strings for any other document."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - of our own store; expat limits expansions itself
    except ET.ParseError:
        return "", ""
    if _local_name(root.tag) != "Error":
        return "", ""
    texts = {_local_name(child.tag): child.text or "" for child in root}
    return texts.get("Code", ""), texts.get("Message", "")


def store_error(request: S3Request, trouble: Trouble, *, attempts: int) -> ObjectStoreError:
    """Return the error of a request that failed in its last attempt.

    Args:
        trouble: failure of the last attempt; it decides on fault, hint and `retryable`.
        attempts: number of attempts made, for the text and the details.
    """
    if isinstance(trouble, BrokenOff):
        hint = "Nothing more is done."
        fault = Fault.INFRASTRUCTURE
    elif trouble.is_retryable:
        hint = f"Given up after {attempts} attempts; check that the object store runs and is not full."
        fault = Fault.INFRASTRUCTURE
    else:
        hint = "Not retried, because the same request gets the same answer."
        fault = Fault.USER
        if trouble.status == HTTPStatus.FORBIDDEN:
            hint += " Check that the job's access key may read and write there."
        elif trouble.status == HTTPStatus.NOT_FOUND:
            hint += " Check bucket and key."
    return ObjectStoreError(
        f"{request}: {trouble.reason}. {hint}",
        fault=fault,
        retryable=trouble.is_retryable,
        details={
            "bucket": request.bucket,
            "key": request.key,
            "status": trouble.status,
            "code": trouble.code,
            "attempts": attempts,
        },
    )


def _refusal(request: S3Request, answer: S3Response) -> Trouble:
    try:
        body = b"" if request.method == "HEAD" else answer.read_all(max_bytes=_MAX_ERROR_BYTES)
    except Trouble:
        body = b""
    code, message = error_facts(body)
    said = f" {code}" if code else ""
    said += f" ({message})" if message else ""
    is_retryable = answer.status in _RETRIED_STATUSES or code in _RETRIED_CODES
    # Not an answer of S3, but of an HTTP server that could not parse the request: bytes were damaged in transit.
    is_unread = answer.status == HTTPStatus.BAD_REQUEST and not code and "x-amz-request-id" not in answer.headers
    is_retryable = is_retryable or is_unread
    reason = f"S3 answered {answer.status}{said or ' ' + _phrase(answer.status)}"
    return Trouble(reason, status=answer.status, code=code, is_retryable=is_retryable)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "with no reason"


def _local_name(tag: str) -> str:
    return tag.rpartition("}")[2]


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
