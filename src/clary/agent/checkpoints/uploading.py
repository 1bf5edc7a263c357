"""Uploads of checkpoint files: each file is read once, and hashed while it is sent.

A file counts as stored only if it is the same before and after the reading. If it has changed meanwhile, no object
appears under its key.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.places import Prefix
from clary.agent.checkpoints.scanning import FileFacts, facts_of
from clary.base.errors import AgentError, ObjectStoreError
from clary.contract.checkpoint_sets import CheckpointFile
from clary.contract.object_store import ObjectInfo, ObjectStore

_NUM_PARALLEL = 8  # parallel uploads of small files; a large file is uploaded alone, in parallel parts
_LARGE_BYTES = 16 << 20
_READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A file to store, its state when the folder was scanned, and its key below the prefix."""

    path: str
    facts: FileFacts
    key: str
    descriptor: int | None = None  # open file, if another file now has its name; the caller closes it


class Uploader:
    """Stores files.

    Args:
        is_given_up: called between two reads; once it returns True, all uploads fail with an AgentError.
        on_progress: called, from several threads, whenever the store has accepted data.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        prefix: Prefix,
        store: ObjectStore,
        *,
        is_given_up: Callable[[], bool],
        on_progress: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._store = store
        self._is_given_up = is_given_up
        self._on_progress = on_progress

    def store_all(
        self, uploads: Sequence[Upload], *, on_stored: Callable[[Upload, CheckpointFile], None]
    ) -> dict[str, str]:
        """Store files; files that have changed since the scan are skipped.

        Args:
            on_stored: called, from several threads, with each stored file.
        Returns: path -> reason, for files that cannot be read.
        Raises: ObjectStoreError, AgentError; `on_stored` has been called for every file stored before the error.
        """
        unread: dict[str, str] = {}
        stop = threading.Event()

        def work(upload: Upload) -> None:
            if stop.is_set():
                return
            try:
                file = self._store_one(upload)
            except FileNotFoundError:
                return  # the next scan sees its new state
            except OSError as error:
                unread[upload.path] = error.strerror or str(error)
                return
            except BaseException:
                stop.set()
                raise
            if file is not None:
                on_stored(upload, file)
                self._on_progress()

        small = [upload for upload in uploads if upload.facts.size_bytes <= _LARGE_BYTES]
        if len(small) > 1:
            with ThreadPoolExecutor(min(_NUM_PARALLEL, len(small)), thread_name_prefix="checkpoint-upload") as pool:
                jobs = [pool.submit(work, upload) for upload in small]
            for job in jobs:
                job.result()
            small = []
        for upload in [*small, *(upload for upload in uploads if upload.facts.size_bytes > _LARGE_BYTES)]:
            work(upload)
        return unread

    def _store_one(self, upload: Upload) -> CheckpointFile | None:
        """Store a file; None if it has changed. Raises: OSError if it cannot be read."""
        if upload.descriptor is not None:
            digest = self._read_through(upload, upload.descriptor)
        else:
            descriptor = self._folder.open_file(upload.path)
            try:
                digest = self._read_through(upload, descriptor)
            finally:
                os.close(descriptor)
        if digest is None:
            return None
        self._check(upload)
        return CheckpointFile(
            path=upload.path,
            size_bytes=upload.facts.size_bytes,
            sha256=digest,
            key=upload.key,
            mode=upload.facts.mode,
            modified_ns=upload.facts.modified_ns,
        )

    def _read_through(self, upload: Upload, descriptor: int) -> str | None:
        """Store the content of an open file; return its SHA-256, or None if the file has changed since the scan."""
        if facts_of(os.fstat(descriptor)) != upload.facts:
            return None
        digest = hashlib.sha256()
        offset = 0
        try:
            with self._store.open_writer(self._prefix.bucket, self._prefix.key(upload.key)) as writer:
                while data := os.pread(descriptor, _READ_BYTES, offset):
                    if self._is_given_up():
                        raise AgentError(f"the upload of checkpoint {upload.path!a} was given up")
                    offset += len(data)
                    if offset > upload.facts.size_bytes:
                        raise _ChangedError  # stop, because the file may grow as fast as it is read
                    digest.update(data)
                    writer.write(data)
                    self._on_progress()
                if writer.size_bytes != upload.facts.size_bytes or facts_of(os.fstat(descriptor)) != upload.facts:
                    raise _ChangedError
        except _ChangedError:
            return None
        return digest.hexdigest()

    def _check(self, upload: Upload) -> None:
        """Check the size of the stored object, to detect a loss of bytes now and not in a restore."""
        found = listed(self._store, self._prefix.bucket, self._prefix.key(upload.key))
        if found is None or found.size_bytes != upload.facts.size_bytes:
            got = "nothing" if found is None else f"{found.size_bytes} bytes"
            raise ObjectStoreError(
                f"s3://{self._prefix.bucket}/{self._prefix.key(upload.key)}: the store accepted "
                f"{upload.facts.size_bytes} bytes, but its listing shows {got}. The upload is tried again in "
                "the next round.",
                retryable=True,
            )


def listed(store: ObjectStore, bucket: str, key: str) -> ObjectInfo | None:
    """Return an object's entry in the bucket's listing; None if a restore would not find it there.

    Use this instead of `head`: SeaweedFS answers `head` also for names that it lists differently or not at all.

    Args:
        store: the object store.
        bucket: name of the bucket.
        key: the whole key, with the prefix.
    Raises: ObjectStoreError.
    """
    first = next(store.list_objects(bucket, key), None)  # no other key with this prefix sorts earlier
    return first if first is not None and first.key == key else None


class _ChangedError(Exception):
    """The file has changed since its reading began."""
