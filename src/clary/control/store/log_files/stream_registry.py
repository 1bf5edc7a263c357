"""The log streams of a folder, and the few whose files are open.

Where: `LogStore` calls this from its threads; every call blocks, and several threads may call at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from clary.base.errors import Fault, StoreError
from clary.control.store.errors import BadLogQuery, StreamDamaged, StreamNotFound
from clary.control.store.log_files.log_records import StreamHeader
from clary.control.store.log_files.stream_file import StreamFile, StreamView, create_stream_file, read_stream_name

MAX_OPEN_FILES = 128  # streams with an open file for appending; other files are opened when needed
MAX_NAME_LENGTH = 512  # logStreamName

_FOLDER_MODE = 0o700
_SUFFIX = ".log"
_INDEX_SUFFIX = ".idx"
_DAMAGED_SUFFIX = ".damaged"
_LEFTOVER_SUFFIXES = (".new", ".tmp")  # files that a crash left unrenamed
_MAX_QUOTED_LENGTH = 200  # file systems allow 255 bytes
_HASHED = "~"  # begins the names of files that are named by a digest; quoted stream names never contain it

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StreamSummary:
    """One row of DescribeLogStreams; times in milliseconds since 1970, None before the first event."""

    name: str
    created_at_ms: int
    first_event_ms: int | None
    last_event_ms: int | None
    last_ingestion_ms: int | None
    stored_bytes: int
    next_sequence: int


class _Entry:
    """An existing stream; `lock` guards the other members."""

    __slots__ = ("file", "is_deleted", "lock", "name", "path", "summary")

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.lock = threading.Lock()
        self.file: StreamFile | None = None
        self.summary: StreamSummary | None = None  # cached while the stream's file is closed
        self.is_deleted = False


class StreamRegistry:
    """The streams of one folder, which belongs to this process alone from `ensure_open` to `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._registry = threading.Lock()  # guards the next three attributes; held briefly, never during file access
        self._entries: dict[str, _Entry] = {}
        self._names: list[str] = []  # sorted
        self._opened: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._changing = threading.Lock()  # held while streams are created and deleted
        self._folder_lock: int | None = None

    def ensure_open(self) -> None:
        """Lock the folder and find its streams, at the first call.

        Raises: StoreError if another process holds the folder's lock, or the folder cannot be used.
        """
        with self._changing:
            if self._folder_lock is not None:
                return
            try:
                self._folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
                lock = _lock_folder(self._folder)
                try:
                    self._find_streams()
                except BaseException:
                    os.close(lock)
                    raise
            except OSError as error:
                raise StoreError(
                    f"cannot use the log folder {self._folder}: {error.strerror}; name a folder that can be written",
                    fault=Fault.INFRASTRUCTURE,
                ) from error
            self._folder_lock = lock

    def close(self) -> None:
        """Close all files and unlock the folder."""
        with self._registry:
            entries = list(self._opened.values())
            self._opened.clear()
        for entry in entries:
            with entry.lock:
                if entry.file is not None:
                    entry.file.close()
                    entry.file = None
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None

    def create(self, stream: str, created_at_ms: int) -> None:
        """Create an empty stream; an existing stream is unchanged.

        Raises: BadLogQuery for a bad name; StoreError.
        """
        if not 1 <= len(stream) <= MAX_NAME_LENGTH:
            raise BadLogQuery(
                f"a log stream's name has 1 to {MAX_NAME_LENGTH} characters, got {len(stream)}: {stream[:40]!r}"
            )
        with self._changing:  # one creation at a time, so that two streams of one name cannot collide
            with self._registry:
                if stream in self._entries:
                    return
            entry = _Entry(stream, self._folder / _file_name(stream))
            entry.path.with_suffix(_INDEX_SUFFIX).unlink(missing_ok=True)  # index of an earlier stream of that name
            header = StreamHeader(stream=stream, created_at_ms=created_at_ms, stream_id=secrets.randbits(63))
            create_stream_file(entry.path, header)
            with self._registry:
                self._entries[stream] = entry
                insort(self._names, stream)

    def delete(self, stream: str) -> bool:
        """Delete a stream; return False if it did not exist."""
        return self._take_out(stream, _removed) is not None

    def set_aside(self, stream: str) -> Path | None:
        """Rename a damaged stream's file, so that the stream can be created anew; return the file's new path.

        None for a stream that does not exist any more.
        """
        return self._take_out(stream, _renamed)

    def _take_out(self, stream: str, act: Callable[[Path], Path]) -> Path | None:
        """Forget a stream, close its file and act on it; return the result of the act, None without the stream."""
        with self._changing:
            with self._registry:
                entry = self._entries.pop(stream, None)
                if entry is None:
                    return None
                self._names.remove(stream)
                self._opened.pop(stream, None)
            with entry.lock:
                entry.is_deleted = True
                if entry.file is not None:
                    entry.file.close()
                    entry.file = None
                left = act(entry.path)
                entry.path.with_suffix(_INDEX_SUFFIX).unlink(missing_ok=True)
        return left

    def names_with(self, prefix: str) -> list[str]:
        """Return the names that begin with `prefix`, sorted."""
        with self._registry:
            first = bisect_left(self._names, prefix)
            last = first
            while last < len(self._names) and self._names[last].startswith(prefix):
                last += 1
            return self._names[first:last]

    @contextmanager
    def file_of(self, stream: str) -> Iterator[StreamFile]:
        """Lock a stream and open its file; no other thread appends to the stream or deletes it meanwhile.

        Raises: StreamNotFound.
        """
        with self._registry:
            entry = self._entries.get(stream)
        if entry is None:
            raise StreamNotFound(stream)
        with entry.lock:
            if entry.is_deleted:
                raise StreamNotFound(stream)
            if entry.file is None:
                entry.file = StreamFile(entry.path)
                entry.summary = None
            try:
                yield entry.file
            finally:
                self._note_use(entry)
        self._close_longest_unused()

    def view(self, stream: str) -> StreamView:
        """Return a snapshot of a stream.

        Raises: StreamNotFound.
        """
        with self.file_of(stream) as file:
            return file.view()

    def summary(self, stream: str) -> StreamSummary:
        """Return the summary of a stream.

        Raises: StreamNotFound.
        """
        with self._registry:
            entry = self._entries.get(stream)
        if entry is not None:
            with entry.lock:
                if entry.summary is not None and not entry.is_deleted:
                    return entry.summary
        with self.file_of(stream) as file:
            return _summarise(file)

    def _note_use(self, entry: _Entry) -> None:
        with self._registry:
            if self._entries.get(entry.name) is entry:
                self._opened[entry.name] = entry
                self._opened.move_to_end(entry.name)

    def _close_longest_unused(self) -> None:
        surplus = []
        with self._registry:
            while len(self._opened) > MAX_OPEN_FILES:
                surplus.append(self._opened.popitem(last=False)[1])
        for unused in surplus:
            with unused.lock:
                if unused.file is not None:
                    unused.summary = _summarise(unused.file)
                    unused.file.close()
                    unused.file = None

    def _find_streams(self) -> None:
        entries = {}
        for item in self._folder.iterdir():
            if item.suffix in _LEFTOVER_SUFFIXES:
                item.unlink()
            elif item.suffix == _SUFFIX:
                try:
                    name = _stream_name(item)
                except StreamDamaged as error:
                    _log.warning("left out of the log streams: %s", error.message)
                    continue
                entries[name] = _Entry(name, item)
        with self._registry:
            self._entries = entries
            self._names = sorted(entries)


def _removed(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


def _renamed(path: Path) -> Path:
    kept = path.with_suffix(f".{secrets.token_hex(4)}{_DAMAGED_SUFFIX}")
    path.rename(kept)
    return kept


def _summarise(file: StreamFile) -> StreamSummary:
    return StreamSummary(
        name=file.header.stream,
        created_at_ms=file.header.created_at_ms,
        first_event_ms=file.index.first_at_ms,
        last_event_ms=file.index.last_at_ms,
        last_ingestion_ms=file.index.last_ingestion_ms,
        stored_bytes=file.stored_bytes,
        next_sequence=file.index.next_sequence,
    )


def _lock_folder(folder: Path) -> int:
    """Lock the folder and return the open lock file; the lock ends with the process, even after a crash."""
    path = folder / ".lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreError(
            f"the log folder {folder} is in use by another process: two writers would damage each other's streams; "
            f"stop the other service, or give this one another state folder",
            fault=Fault.USER,
        ) from error
    return lock


def _file_name(stream: str) -> str:
    """Return a file name that no other stream has and that cannot leave the folder."""
    quoted = quote(stream, safe="", errors="surrogatepass").replace(_HASHED, "%7E")
    if len(quoted) > _MAX_QUOTED_LENGTH:
        quoted = _HASHED + hashlib.sha256(stream.encode("utf-8", "surrogatepass")).hexdigest()
    return quoted + _SUFFIX


def _stream_name(path: Path) -> str:
    quoted = path.name.removesuffix(_SUFFIX)
    if quoted.startswith(_HASHED):
        return read_stream_name(path)
    return unquote(quoted, errors="surrogatepass")
