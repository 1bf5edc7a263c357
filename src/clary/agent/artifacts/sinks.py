"""Writers of merged results: one compressed archive, or one object per file below a prefix."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from clary.agent.archives import GzipWriter, Member, MemberKind, TarWriter
from clary.agent.artifacts.staging import require_stored
from clary.agent.notes import NoteBook
from clary.base.errors import AgentError
from clary.contract.object_store import ObjectStore, S3Uri

_MAX_SINGLE_BYTES = 16 << 20  # larger files are streamed in parts
_NUM_PARALLEL = 8  # limit of small files uploaded at the same time
_MAX_MARKED_BYTES = 5 * 10**9  # S3 copies no larger object in one request
_READ_BYTES = 1 << 20


class Sink(Protocol):
    """Writes members to the store; no member counts as stored before `finish` has returned."""

    def add(self, member: Member) -> None:
        """Write one member; its content is read completely before this returns."""

    def finish(self) -> None:
        """Complete and verify all objects. Raises: AgentError, ObjectStoreError if any content is missing."""

    def abort(self) -> None:
        """Drop incomplete objects and end threads; objects that `finish` has verified stay."""


class ArchiveSink:
    """One `.tar.gz` object, uploaded while it is packed."""

    def __init__(self, store: ObjectStore, uri: S3Uri, *, metadata: Mapping[str, str]) -> None:
        self._store = store
        self._uri = uri
        self._object = store.open_writer(uri.bucket, uri.key, metadata=metadata)
        self._gzip = GzipWriter(self._object)
        self._tar = TarWriter(self._gzip)

    def add(self, member: Member) -> None:
        """Take one member."""
        self._tar.add(member)

    def finish(self) -> None:
        """Complete the archive and the object, then verify the object's size in the store."""
        self._tar.close()
        self._gzip.close()
        self._object.close()
        require_stored(self._store, self._uri, size_bytes=self._object.size_bytes)

    def abort(self) -> None:
        """Drop the object unless it is complete."""
        self._gzip.abort()
        self._object.abort()


class LooseSink:
    """One object per file, below a prefix that ends in a slash; S3 has neither empty folders nor links."""

    def __init__(self, store: ObjectStore, prefix: S3Uri, *, notes: NoteBook) -> None:
        self._store = store
        self._prefix = prefix
        self._notes = notes
        self._pool = ThreadPoolExecutor(_NUM_PARALLEL, thread_name_prefix="results")
        self._pending: deque[Future[None]] = deque()
        self._sizes: dict[str, int] = {}  # sizes of sent objects, by key

    def add(self, member: Member) -> None:
        """Upload one member; the upload of a small file may continue after this returns.

        Raises: AgentError for a file that changed while it was uploaded; ObjectStoreError, also for an earlier member.
        """
        if member.kind is MemberKind.FOLDER:
            return
        if member.kind is not MemberKind.FILE:
            self._notes.add(f"left out, a {member.kind.value} cannot be an object", member.name)
            return
        assert member.content is not None
        key = self._prefix.key + member.name
        self._sizes[key] = member.size_bytes
        if member.size_bytes > _MAX_SINGLE_BYTES:
            got = self._store.upload_stream(self._prefix.bucket, key, member.content)
        else:
            body = b""
            while data := member.content.read(_READ_BYTES):
                body += data
            got = len(body)
            self._put(key, body)
        if got != member.size_bytes:
            raise AgentError(
                f"{member.name!a} changed while it was uploaded: expected {member.size_bytes} bytes, got {got}.",
                retryable=True,
            )

    def finish(self) -> None:
        """Wait for all objects, then compare the store's listing with the objects sent.

        Raises: AgentError if the listing lacks an object or has another size for it; ObjectStoreError.
        """
        while self._pending:
            self._pending.popleft().result()
        missing = dict(self._sizes)
        for info in self._store.list_objects(self._prefix.bucket, self._prefix.key):
            if missing.get(info.key) == info.size_bytes:
                del missing[info.key]
        if missing:
            key, size_bytes = next(iter(missing.items()))
            raise AgentError(
                f"{len(missing)} of {len(self._sizes)} results are not in the object store, the first one is "
                f"s3://{self._prefix.bucket}/{key} with {size_bytes} bytes.",
                retryable=True,
            )

    def abort(self) -> None:
        """End the threads; uploaded objects stay, and a repeated upload overwrites them."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def mark(self, metadata: Mapping[str, str]) -> None:
        """Set these metadata on the first object that is small enough for a copy request."""
        for key in sorted(self._sizes):
            if self._sizes[key] <= _MAX_MARKED_BYTES:
                self._store.replace_metadata(self._prefix.bucket, key, metadata)
                return

    @property
    def num_objects(self) -> int:
        """Number of objects sent."""
        return len(self._sizes)

    def _put(self, key: str, body: bytes) -> None:
        while len(self._pending) >= 2 * _NUM_PARALLEL:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(self._store.put_bytes, self._prefix.bucket, key, body))
