"""A store in memory that can fail, hang, lose bytes, and kill its host in the middle of any request."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from clary.base.errors import Fault, ObjectStoreError
from clary.contract.object_store import ObjectInfo


class HostDied(BaseException):
    """The host has died: no code after this runs."""


class FakeCheckpointStore:
    """Objects by key; `on_call` receives operation and key before each request and may raise or wait.

    `shorten` selects the uploads that lose their last byte although the store reports success.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self.on_call: Callable[[str, str], None] = lambda operation, key: None
        self.after_call: Callable[[str, str], None] = lambda operation, key: None
        self.shorten: Callable[[str], bool] = lambda key: False
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectInfo]:
        self._call("list", prefix)
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield self._info(key)

    def head(self, bucket: str, key: str) -> ObjectInfo | None:
        self._call("head", key)
        return self._info(key) if key in self.objects else None

    def get_bytes(self, bucket: str, key: str, *, max_bytes: int) -> bytes:
        self._call("get", key)
        return self._content(key)

    def download(self, bucket: str, key: str, path: Path, *, size_bytes: int | None = None) -> int:
        self._call("get", key)
        data = self._content(key)
        if size_bytes not in (None, len(data)):
            raise ObjectStoreError(f"{key} changed", fault=Fault.USER, details={"status": None})
        path.write_bytes(data)
        return len(data)

    def put_bytes(self, bucket: str, key: str, body: bytes) -> None:
        self._call("put", key)
        self._put(key, body)
        self.after_call("put", key)

    def open_writer(self, bucket: str, key: str) -> FakeWriter:
        return FakeWriter(self, key)

    def copy(self, bucket: str, source_key: str, key: str) -> None:
        self._call("copy", key)
        self._put(key, self._content(source_key))
        self.after_call("copy", key)

    def delete(self, bucket: str, key: str) -> None:
        self._call("delete", key)
        self.objects.pop(key, None)
        self.after_call("delete", key)

    def _call(self, operation: str, key: str) -> None:
        if self.closed.is_set():
            raise ObjectStoreError("closed", fault=Fault.INFRASTRUCTURE)
        self.calls.append((operation, key))
        self.on_call(operation, key)

    def _put(self, key: str, body: bytes) -> None:
        self.objects[key] = body[:-1] if self.shorten(key) else body

    def _content(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectStoreError(f"no {key}", fault=Fault.USER, details={"status": 404})
        return self.objects[key]

    def _info(self, key: str) -> ObjectInfo:
        data = self.objects[key]
        return ObjectInfo(key=key, size_bytes=len(data), etag=hashlib.md5(data).hexdigest())


class FakeWriter:
    """The writer that `open_writer` returns; it stores the object if its block ends without an error."""

    def __init__(self, store: FakeCheckpointStore, key: str) -> None:
        self._store = store
        self._key = key
        self._data = bytearray()
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._store.put_bytes("", self._key, bytes(self._data))

    def write(self, data: bytes) -> int:
        self._data += data
        self.size_bytes += len(data)
        return len(data)


class FakeClock:
    """A clock that advances only when the test sets it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(1_800_000_000 + self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds
