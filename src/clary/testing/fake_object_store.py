"""An object store in memory with the interface of `contract.object_store.ObjectStore`, for tests without sockets."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from clary.agent.archives import Readable
from clary.base.errors import Fault, ObjectStoreError
from clary.contract.object_store import ObjectInfo, whole_file


class FakeObjectStore:
    """Creates a bucket at its first use; requests in `fail_on` fail as if the store refused them."""

    region = "us-west-2"

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.metadata: dict[tuple[str, str], dict[str, str]] = {}
        self.fail_on: set[tuple[str, str]] = set()  # (method, key)
        self.num_reads = 0

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectInfo]:
        """Yield objects sorted by the UTF-8 bytes of their keys."""
        keys = [key for name, key in self.objects if name == bucket and key.startswith(prefix)]
        for key in sorted(keys, key=lambda text: text.encode("utf-8", "surrogatepass")):
            yield self._info(bucket, key)

    def head(self, bucket: str, key: str) -> ObjectInfo | None:
        """Return an object's facts, or None if it does not exist."""
        self._maybe_fail("HEAD", bucket, key)
        return self._info(bucket, key) if (bucket, key) in self.objects else None

    def get_bytes(self, bucket: str, key: str, *, max_bytes: int) -> bytes:
        """Return an object's content. Raises: ObjectStoreError (fault USER).

        Args: as `ObjectStore.get_bytes`.
        """
        data = self._content(bucket, key)
        if len(data) > max_bytes:
            raise ObjectStoreError(f"s3://{bucket}/{key} has more than {max_bytes} bytes", fault=Fault.USER)
        return data

    def download(self, bucket: str, key: str, path: Path, *, size_bytes: int | None = None, etag: str = "") -> int:
        """Write an object to a file. Raises: ObjectStoreError (fault USER).

        Args: as `ObjectStore.download`.
        """
        data = self._content(bucket, key, etag=etag)
        if size_bytes not in (None, len(data)):
            raise ObjectStoreError(f"s3://{bucket}/{key} changed", fault=Fault.USER)
        with whole_file(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        return len(data)

    def open_reader(self, bucket: str, key: str, *, etag: str = "") -> BinaryIO:
        """Open an object as a stream.

        Args: as `ObjectStore.open_reader`.
        """
        return io.BytesIO(self._content(bucket, key, etag=etag))

    def put_bytes(self, bucket: str, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> None:
        """Store an object.

        Args: as `ObjectStore.put_bytes`.
        """
        self._maybe_fail("PUT", bucket, key)
        self.objects[bucket, key] = bytes(body)
        self.metadata[bucket, key] = dict(metadata or {})

    def upload_stream(
        self, bucket: str, key: str, reader: Readable, *, metadata: Mapping[str, str] | None = None
    ) -> int:
        """Store the bytes of a stream.

        Args: as `ObjectStore.upload_stream`.
        """
        with self.open_writer(bucket, key, metadata=metadata) as writer:
            while data := reader.read(1 << 20):
                writer.write(data)
        return writer.size_bytes

    def open_writer(self, bucket: str, key: str, *, metadata: Mapping[str, str] | None = None) -> FakeObjectWriter:
        """Open a stream that becomes an object.

        Args: as `ObjectStore.open_writer`.
        """
        return FakeObjectWriter(self, bucket, key, metadata=metadata)

    def replace_metadata(self, bucket: str, key: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of an object.

        Args: as `ObjectStore.replace_metadata`.
        """
        self._maybe_fail("PUT", bucket, key)
        self.metadata[bucket, key] = dict(metadata)

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object if it exists."""
        self._maybe_fail("DELETE", bucket, key)
        self.objects.pop((bucket, key), None)
        self.metadata.pop((bucket, key), None)

    def _content(self, bucket: str, key: str, *, etag: str = "") -> bytes:
        self._maybe_fail("GET", bucket, key)
        self.num_reads += 1
        if (bucket, key) not in self.objects:
            raise ObjectStoreError(
                f"GET s3://{bucket}/{key}: 404 NoSuchKey", fault=Fault.USER, details={"status": 404, "key": key}
            )
        if etag and etag != self._info(bucket, key).etag:
            raise ObjectStoreError(
                f"GET s3://{bucket}/{key}: 412 PreconditionFailed",
                fault=Fault.USER,
                details={"status": 412, "key": key},
            )
        return self.objects[bucket, key]

    def _info(self, bucket: str, key: str) -> ObjectInfo:
        data = self.objects[bucket, key]
        etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        return ObjectInfo(key=key, size_bytes=len(data), etag=etag, metadata=self.metadata.get((bucket, key), {}))

    def _maybe_fail(self, method: str, bucket: str, key: str) -> None:
        if (method, key) in self.fail_on:
            raise ObjectStoreError(f"{method} s3://{bucket}/{key}: told to fail", details={"key": key})


class FakeObjectWriter:
    """Write-only stream into a FakeObjectStore; nothing appears before `close`."""

    def __init__(
        self, store: FakeObjectStore, bucket: str, key: str, *, metadata: Mapping[str, str] | None = None
    ) -> None:
        self._store = store
        self._place = (bucket, key)
        self._metadata = metadata
        self._data = bytearray()
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return len(self._data)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes."""
        self._data += data
        return len(data)

    def close(self) -> None:
        """Store the object."""
        if not self._is_over:
            self._is_over = True
            self._store.put_bytes(*self._place, bytes(self._data), metadata=self._metadata)

    def abort(self) -> None:
        """Discard the bytes; no object is stored."""
        self._is_over = True
