"""The S3 client of agents and programs, `ObjectStore`.

Where: agents use it with the plan's own endpoint and key to fetch channels and write artifacts; `clary cp` copies with
it; the debugger's trials use it in programs that have no boto3.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast
from urllib.parse import quote

from clary.base.clock import Clock, SystemClock
from clary.base.errors import Fault, ObjectStoreError
from clary.contract.launch_plan import Endpoint
from clary.contract.object_store import reading, writing
from clary.contract.object_store.exchange import Exchange, S3Request, Trouble, error_facts
from clary.contract.object_store.listing import Listing, ObjectInfo, pages_of

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing since Python 3.11

_READ_BUFFER_BYTES = 1 << 20
_METADATA_PREFIX = "x-amz-meta-"


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, or an empty bytes object at the end."""


class ObjectStore:
    """An S3 endpoint; safe for many threads at once. Close it to end its threads and connections.

    Args:
        endpoint: URL, region and key; the URL's path, if any, is put in front of the bucket's name.
        timeout_s: timeout in seconds for connecting and for each pause within an answer.
        attempts: number of attempts of each request, including the first.
        clock: gives the time for signatures of requests.
        sleep: waits between attempts; the default also ends at `close`, and tests pass their own.
        session_token: session token of a temporary key.
        authorities: a file of certificates to trust instead of this machine's.
    Raises: every method raises ObjectStoreError when the store refused (fault USER) or did not answer (fault
        INFRASTRUCTURE, retryable); `details` hold bucket, key, status, code and attempts.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float = 60.0,
        attempts: int = 5,
        clock: Clock | None = None,
        sleep: Callable[[float], object] | None = None,
        session_token: str = "",
        authorities: str = "",
    ) -> None:
        self.region = endpoint.region
        self._exchange = Exchange(
            endpoint,
            timeout_s=timeout_s,
            attempts=attempts,
            clock=clock or SystemClock(),
            sleep=sleep,
            session_token=session_token,
            authorities=authorities,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Abort transfers in progress, which then raise, and end threads and connections. Call it from any thread."""
        self._exchange.close()

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix`, in the store's order (UTF-8), page by page."""
        for page in pages_of(self._exchange, bucket, {"prefix": prefix}):
            yield from page.objects

    def list_folder(self, bucket: str, prefix: str, *, after: str = "") -> Listing:
        """Return the objects and folders directly at `prefix`, without their contents.

        Args:
            after: list only keys that sort after this key.
        """
        query = {"prefix": prefix, "delimiter": "/"} | ({"start-after": after} if after else {})
        found = Listing()
        for page in pages_of(self._exchange, bucket, query):
            found.objects += page.objects
            found.folders += page.folders
        return found

    def head(self, bucket: str, key: str) -> ObjectInfo | None:
        """Return an object's facts; None if there is no such object or bucket."""
        try:
            headers, _ = self._exchange.send(S3Request(method="HEAD", bucket=bucket, key=key))
        except ObjectStoreError as error:
            if error.details.get("status") == HTTPStatus.NOT_FOUND:
                return None
            raise
        metadata = {
            name.lower().removeprefix(_METADATA_PREFIX): value
            for name, value in headers.items()
            if name.lower().startswith(_METADATA_PREFIX)
        }
        return ObjectInfo(
            key=key,
            size_bytes=int(headers.get("content-length") or 0),
            etag=headers.get("etag", ""),
            metadata=metadata,
        )

    def get_bytes(self, bucket: str, key: str, *, max_bytes: int) -> bytes:
        """Return an object's content; an object of more than `max_bytes` is an error.

        Args:
            bucket: name of the bucket.
            key: key of the object.
            max_bytes: largest accepted size; a larger object raises at once.
        """
        request = S3Request(method="GET", bucket=bucket, key=key)

        def attempt() -> bytes:
            with self._exchange.once(request) as response:
                return response.read_all(max_bytes=max_bytes)

        return self._exchange.retrying(attempt, request)

    def get_range(self, bucket: str, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes of an object from `start` on, fewer if the object ends before.

        Args:
            bucket: name of the bucket.
            key: key of the object.
            start: first byte, from 0; the store refuses a start beyond the end with status 416.
            length: 1 or more.
        """
        return reading.read_range(self._exchange, S3Request(method="GET", bucket=bucket, key=key), start, length)

    def download(self, bucket: str, key: str, path: Path, *, size_bytes: int | None = None, etag: str = "") -> int:
        """Write an object to `path` and return its size; large objects are fetched by parallel ranges.

        The file appears under its name only when it is whole. State after failure: `path` is unchanged.

        Args:
            size_bytes: size that the object must have, for example from a listing; None accepts any size.
            etag: ETag of the only version to accept, with its quotes; requires `size_bytes`. Another version is refused
                with status 412.
        Raises: AgentError (fault USER) for a full disk, naming path, bytes needed and bytes free.
        """
        request = S3Request(method="GET", bucket=bucket, key=key)
        if size_bytes is not None and size_bytes <= reading.PARALLEL_ABOVE_BYTES:
            reading.download_whole(self._exchange, request, path, size_bytes=size_bytes, etag=etag)
            return size_bytes
        if size_bytes is not None and etag:
            reading.download_ranges(self._exchange, request, path, size_bytes=size_bytes, etag=etag)
            return size_bytes
        facts = self._facts(request)
        if size_bytes not in (None, facts.size_bytes):
            raise ObjectStoreError(
                f"s3://{bucket}/{key} changed while the job fetched it: expected {size_bytes} bytes, "
                f"got {facts.size_bytes}.",
                fault=Fault.USER,
                details={"bucket": bucket, "key": key, "status": None, "attempts": 1},
            )
        if facts.size_bytes <= reading.PARALLEL_ABOVE_BYTES:
            reading.download_whole(self._exchange, request, path, size_bytes=facts.size_bytes)
        else:
            reading.download_ranges(
                self._exchange,
                request,
                path,
                size_bytes=facts.size_bytes,
                etag=facts.etag,
            )
        return facts.size_bytes

    def open_reader(self, bucket: str, key: str, *, etag: str = "") -> BinaryIO:
        """Open an object as a stream that continues after a broken connection; close it after use.

        Args:
            etag: ETag of the only version to read, with its quotes; empty reads the present version.
        """
        reader = reading.ObjectReader(self._exchange, bucket=bucket, key=key, etag=etag)
        return cast("BinaryIO", io.BufferedReader(reader, _READ_BUFFER_BYTES))

    def put_bytes(self, bucket: str, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> None:
        """Store `body` as an object with one request.

        Args:
            bucket: name of the bucket.
            key: key of the object.
            body: sent again as a whole when a connection breaks.
            metadata: text by name, without `x-amz-meta-`; None for no metadata.
        """
        writing.put_object(self._exchange, bucket, key, body=body, headers=_metadata_headers(metadata or {}))

    def upload_stream(
        self, bucket: str, key: str, reader: _Readable, *, metadata: Mapping[str, str] | None = None
    ) -> int:
        """Store the content of `reader` as an object and return the size; errors of `reader` abort the upload.

        From 16 MiB on the content is stored by parallel parts.

        Args:
            bucket: name of the bucket.
            key: key of the object.
            reader: stream that is read to its end and not closed.
            metadata: text by name, without `x-amz-meta-`; None for no metadata.
        """
        with self.open_writer(bucket, key, metadata=metadata) as writer:
            while data := reader.read(_READ_BUFFER_BYTES):
                writer.write(data)
        return writer.size_bytes

    def open_writer(self, bucket: str, key: str, *, metadata: Mapping[str, str] | None = None) -> writing.ObjectWriter:
        """Open a stream that becomes an object when it is closed; use it as a context, which aborts on an error.

        Args:
            bucket: name of the bucket.
            key: key of the object.
            metadata: text by name, without `x-amz-meta-`; None for no metadata.
        """
        headers = _metadata_headers(metadata or {})
        return writing.ObjectWriter(self._exchange, bucket=bucket, key=key, headers=headers)

    def copy(self, bucket: str, source_key: str, key: str) -> None:
        """Copy an object within a bucket, in the store itself and with its metadata; on AWS for objects up to 5 GB.

        Args:
            bucket: name of the bucket of both objects.
            source_key: key of the existing object.
            key: key of the copy; an object under this key is replaced.
        """
        self._copy(bucket, source_key, key, headers={})

    def replace_metadata(self, bucket: str, key: str, metadata: Mapping[str, str]) -> None:
        """Replace an object's metadata by copying the object onto itself; on AWS for objects up to 5 GB.

        Args:
            bucket: name of the bucket.
            key: key of the object.
            metadata: replaces all metadata of the object.
        """
        self._copy(bucket, key, key, headers={"x-amz-metadata-directive": "REPLACE", **_metadata_headers(metadata)})

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object; a missing one is no error."""
        try:
            self._exchange.send(S3Request(method="DELETE", bucket=bucket, key=key))
        except ObjectStoreError as error:
            if error.details.get("code") != "NoSuchKey":
                raise

    def _copy(self, bucket: str, source_key: str, key: str, *, headers: Mapping[str, str]) -> None:
        headers = {"x-amz-copy-source": f"/{bucket}/{quote(source_key)}", **headers}
        request = S3Request(method="PUT", bucket=bucket, key=key, headers=headers, body=b"")

        def attempt() -> None:
            with self._exchange.once(request) as response:
                code, message = error_facts(response.read_all())  # S3 answers 200 first and may find an error later
            if code:
                raise Trouble(f"S3 could not copy the object: {code} ({message})", code=code)

        self._exchange.retrying(attempt, request)

    def _facts(self, request: S3Request) -> ObjectInfo:
        facts = self.head(request.bucket, request.key)
        if facts is None:
            self._exchange.send(request)  # the error of a GET names the missing bucket or key, unlike an answer to HEAD
            raise AssertionError("an object that HEAD does not find cannot be read")
        return facts


def _metadata_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    return {f"{_METADATA_PREFIX}{name}": value for name, value in metadata.items()}
