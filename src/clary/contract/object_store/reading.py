"""Downloads from the store: streams that survive broken connections, parallel ranges into a file.

A file appears under its name only when it is whole: it is written under a temporary name in the same folder and
renamed. No fsync is needed: after a crash of the machine the job starts again from the store.
"""

from __future__ import annotations

import base64
import io
import os
import secrets
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from clary.base.disk_space import disk_errors_named, require_space
from clary.contract.object_store.exchange import BrokenOff, Exchange, S3Request, S3Response, Trouble, store_error

RANGE_BYTES = 16 << 20  # size of one ranged GET
PARALLEL_ABOVE_BYTES = 32 << 20
PART_SUFFIX = ".clary-part"
_CHUNK_BYTES = 1 << 20
_RANGE_IGNORED = "the store ignored the range that was asked for"
_CHANGED = "the object was replaced since it was listed"


class ObjectReader(io.RawIOBase):
    """An object as a stream; after a broken connection it continues at the same byte of the same version.

    Raises (from reads): ObjectStoreError if `exchange.attempts` requests in a row bring no data, or if the object was
    replaced meanwhile.
    """

    def __init__(self, exchange: Exchange, *, bucket: str, key: str, etag: str | None = None) -> None:
        super().__init__()
        self._exchange = exchange
        self._bucket = bucket
        self._key = key
        self._position = 0
        self._response: S3Response | None = None
        self._etag = etag or None  # ETag of the version to read; by default that of the first answer
        self.size_bytes: int | None = None  # size, known after the first answer
        self._num_troubles = 0
        exchange.retrying(self._open, self._request())

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill `buffer` with the next bytes and return their number, 0 at the end of the object.

        Raises: ObjectStoreError.
        """
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        if not view:
            return 0
        while True:
            try:
                if self._response is None:
                    if self._position == self.size_bytes:
                        return 0
                    self._open()
                assert self._response is not None
                count = self._response.readinto(view)
                if count == 0 and self.size_bytes is not None and self._position < self.size_bytes:
                    raise Trouble(f"the answer broke off after {self._position} of {self.size_bytes} bytes")
            except Trouble as trouble:
                self._release()
                self._num_troubles += 1
                if self._exchange.is_closed:
                    raise store_error(self._request(), BrokenOff(), attempts=self._num_troubles) from trouble
                if not trouble.is_retryable or self._num_troubles >= self._exchange.attempts:
                    raise store_error(self._request(), trouble, attempts=self._num_troubles) from trouble
                self._exchange.pause(self._num_troubles)
                continue
            self._position += count
            if count:
                self._num_troubles = 0
            else:
                self._release()
            return count

    def close(self) -> None:
        """Release the connection."""
        self._release()
        super().close()

    def _request(self) -> S3Request:
        headers = {}
        if self._position:
            headers["range"] = f"bytes={self._position}-"
        if self._etag:
            headers["if-match"] = self._etag
        return S3Request(method="GET", bucket=self._bucket, key=self._key, headers=headers)

    def _open(self) -> None:
        response = self._exchange.once(self._request())
        try:
            if self._position:
                _require_range(response)
            _require_version(response, self._etag or "")
        except Trouble:
            response.close()
            raise
        if self.size_bytes is None:
            self.size_bytes = response.content_length
            self._etag = response.headers.get("etag")
        self._response = response

    def _release(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None


@dataclass(frozen=True, kw_only=True)
class _Version:
    """One version of an object that is being downloaded into an open file."""

    request: S3Request
    size_bytes: int
    etag: str
    descriptor: int


@contextmanager
def whole_file(path: Path) -> Iterator[int]:
    """Yield a descriptor of a temporary file that becomes `path`, or is removed if the block raises an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The temporary name has a fixed length, because `path.name` may already have the greatest length of a name.
    temporary = path.with_name(f".{secrets.token_hex(8)}{PART_SUFFIX}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def download_whole(exchange: Exchange, request: S3Request, path: Path, *, size_bytes: int, etag: str = "") -> None:
    """Fetch an object with one GET at a time; each attempt starts again from the first byte.

    Args:
        etag: ETag of the only version to accept; empty accepts the present version.
    Raises: ObjectStoreError; AgentError for a full disk.
    """
    require_space(path.parent, needed_bytes=size_bytes)
    version = {"if-match": etag} if etag else {}
    request = replace(request, headers={**request.headers, **version, "x-amz-checksum-mode": "ENABLED"})
    with disk_errors_named(path, needed_bytes=size_bytes), whole_file(path) as descriptor:

        def attempt() -> None:
            with exchange.once(request) as response:
                _require_version(response, etag)
                crc32 = _copy(response, descriptor, start=0, size_bytes=size_bytes)
                expected = response.headers.get("x-amz-checksum-crc32", "")
            # A checksum with a dash is computed over the checksums of parts, and cannot be checked by a plain GET.
            if expected and "-" not in expected and base64.b64decode(expected) != crc32.to_bytes(4, "big"):
                raise Trouble("the content does not match its CRC32: it was damaged on its way")

        exchange.retrying(attempt, request)


def download_ranges(exchange: Exchange, request: S3Request, path: Path, *, size_bytes: int, etag: str) -> None:
    """Fetch the version of an object that `etag` names, by ranges in parallel.

    Args:
        request: a GET of the whole object; the function adds ranges to it.
        path: path of the file, which appears when it is whole.
        size_bytes: size of that version.
        etag: ETag with its quotes.
    Raises: ObjectStoreError; AgentError for a full disk.
    """
    require_space(path.parent, needed_bytes=size_bytes)
    stop = threading.Event()
    with disk_errors_named(path, needed_bytes=size_bytes), whole_file(path) as descriptor:
        os.truncate(descriptor, size_bytes)
        version = _Version(request=request, size_bytes=size_bytes, etag=etag, descriptor=descriptor)
        jobs: list[Future[None]] = []
        try:
            for start in range(0, size_bytes, RANGE_BYTES):
                action = _range_download(exchange, version, start, stop=stop)
                jobs.append(exchange.submit(action, request))
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in done:
                job.result()
        finally:
            stop.set()
            for job in jobs:
                job.cancel()
            wait(jobs)  # the descriptor must outlive every thread that writes to it


def _range_download(exchange: Exchange, version: _Version, start: int, *, stop: threading.Event) -> Callable[[], None]:
    """Return a function that fetches one range; it does nothing once `stop` is set."""
    end = min(start + RANGE_BYTES, version.size_bytes)
    ranged = _ranged(version.request, start, end, etag=version.etag)

    def attempt() -> None:
        if stop.is_set():
            return
        with exchange.once(ranged) as response:
            _require_range(response)
            _require_version(response, version.etag)
            _copy(response, version.descriptor, start=start, size_bytes=end - start)

    return lambda: exchange.retrying(attempt, ranged)


def read_range(exchange: Exchange, request: S3Request, start: int, length: int) -> bytes:
    """Return `length` bytes of an object from `start` on, fewer if the object ends before.

    Args:
        request: a GET of the whole object; the function adds the range to it.
        start: first byte, from 0.
        length: 1 or more.
    Raises: ObjectStoreError.
    """
    ranged = _ranged(request, start, start + length)

    def attempt() -> bytes:
        with exchange.once(ranged) as response:
            _require_range(response)
            return response.read_all(max_bytes=length)

    return exchange.retrying(attempt, ranged)


def _ranged(request: S3Request, start: int, end: int, *, etag: str = "") -> S3Request:
    """Return a request for the bytes from `start` up to `end`, of one version if an ETag names it."""
    headers = {"range": f"bytes={start}-{end - 1}", **({"if-match": etag} if etag else {})}
    return replace(request, headers=headers)


def _require_range(response: S3Response) -> None:
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        raise Trouble(_RANGE_IGNORED, is_retryable=False)


def _require_version(response: S3Response, etag: str) -> None:
    """Raise Trouble if the answer is of another version, as stores that ignore If-Match may send."""
    if etag and response.headers.get("etag", etag) != etag:
        raise Trouble(_CHANGED, status=HTTPStatus.PRECONDITION_FAILED, is_retryable=False)


def _copy(response: S3Response, descriptor: int, *, start: int, size_bytes: int) -> int:
    """Write the body to a file from `start` on, return its CRC32. Raises: Trouble unless it has `size_bytes`."""
    declared = response.content_length
    if declared is not None and declared != size_bytes:
        raise Trouble(
            f"expected {size_bytes} bytes, the store sends {declared}: the object changed meanwhile", is_retryable=False
        )
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, max(1, size_bytes))))
    position = 0
    crc32 = 0
    while count := response.readinto(buffer):
        view = buffer[:count]
        crc32 = zlib.crc32(view, crc32)
        while view:
            written = os.pwrite(descriptor, view, start + position)
            view = view[written:]
            position += written
    if position != size_bytes:
        raise Trouble(f"the answer broke off after {position} of {size_bytes} bytes")
    return crc32
