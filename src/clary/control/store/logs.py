"""Log streams in a folder: appended by agents exactly once, read with CloudWatch's rules, kept over restarts.

Where: the agents' service appends batches, the logs service answers DescribeLogStreams, GetLogEvents and FilterLogEvents
from here. One file a stream (`stream_file`), pages in `log_pages`. A call that returns has its lines in the kernel's
hands, so that they survive the death of this process; `seal` forces them to disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import secrets
import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from clary.contract.agent_protocol import LogLine
from clary.contract.clock import Clock, SystemClock
from clary.contract.errors import Fault, StoreError
from clary.control.store import log_pages, tokens
from clary.control.store.errors import BadLogQuery, StreamNotFound
from clary.control.store.filter_patterns import compile_pattern
from clary.control.store.log_pages import EventPage, FilteredPage, TimeRange
from clary.control.store.log_records import StreamHeader
from clary.control.store.stream_file import StreamFile, StreamView, create_stream_file, read_stream_name

T = TypeVar("T")

MAX_OPEN_FILES = 128  # streams that keep their file open for appending; others are opened again when needed
MAX_NAME_LENGTH = 512  # logStreamName
NUM_THREADS = 4
CALL_TIMEOUT_S = 60.0
MAX_LISTED = 50  # DescribeLogStreams, limit

_FOLDER_MODE = 0o700
_SUFFIX = ".log"
_INDEX_SUFFIX = ".idx"
_LEFTOVER_SUFFIXES = (".new", ".tmp")  # files that a crash left before they got their name
_MAX_QUOTED_LENGTH = 200  # file systems end at 255 bytes
_HASHED = "~"  # begins file names that hold a digest in place of the stream's name; quoted names never contain it
# Log tokens open nothing that their bearer could not read anyway: the digest only has to catch mistakes.
_TOKEN_KEY = b"clary log pages"

_log = logging.getLogger(__name__)


class StreamOrder(StrEnum):
    """What streams are listed by, as DescribeLogStreams spells it."""

    NAME = "LogStreamName"
    LAST_EVENT = "LastEventTime"  # streams without events count as oldest


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


@dataclass(frozen=True, kw_only=True)
class StreamPage:
    """One page of streams; `next_token` is None unless more really follow."""

    streams: tuple[StreamSummary, ...]
    next_token: str | None


class _Entry:
    """A stream that exists; `lock` guards the rest."""

    __slots__ = ("file", "is_deleted", "lock", "name", "path", "summary")

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.lock = threading.Lock()
        self.file: StreamFile | None = None
        self.summary: StreamSummary | None = None  # of a stream whose file is closed
        self.is_deleted = False


class LogStore:
    """All log streams of a service.

    Args:
        folder: holds one file a stream and belongs to this store alone; created if missing, at the first call.
        clock: gives the ingestion times.
    """

    def __init__(self, folder: Path | str, *, clock: Clock | None = None) -> None:
        self._folder = Path(folder)
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="clary-log-store")
        self._registry = threading.Lock()  # guards what follows; taken for moments only, never around file access
        self._entries: dict[str, _Entry] = {}
        self._names: list[str] = []  # sorted
        self._opened: OrderedDict[str, _Entry] = OrderedDict()  # longest unused first
        self._opening = threading.Lock()
        self._folder_lock: int | None = None
        self._is_closed = False

    async def open(self) -> None:
        """Take possession of the folder and find its streams; every other call does this by itself.

        Raises: StoreError if another process has the folder, or it cannot be used.
        """
        await self._run(lambda: None)

    async def close(self) -> None:
        """Finish what was begun, close all files and let go of the folder; closing twice does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._close_files)

    async def create_stream(self, stream: str, created_at: datetime) -> None:
        """Create an empty stream; one that exists stays as it is."""
        await self._run(lambda: self._create(stream, int(created_at.timestamp() * 1000)))

    async def append(self, stream: str, first_sequence: int, lines: Sequence[LogLine]) -> int:
        """Store lines exactly once and return the number of the line that is expected next.

        Args:
            stream: its name.
            first_sequence: number of the first line within the stream, from 0. Lines that are stored already are
                dropped, so a batch may be sent again as often as its answer gets lost.
            lines: numbered without gaps.

        Raises: StreamNotFound; SequenceGap if lines before the first are missing. Nothing of the batch is stored then.
        """
        if first_sequence < 0:
            raise StoreError(f"log stream {stream!r}: line numbers begin at 0, got {first_sequence}", fault=Fault.USER)
        now_ms = int(self._clock.now().timestamp() * 1000)

        def append() -> int:
            with self._file_of(stream) as file:
                return file.append(first_sequence, lines, now_ms=now_ms)

        return await self._run(append)

    async def next_sequence(self, stream: str) -> int:
        """Return the number of the line that a stream expects next.

        Raises: StreamNotFound.
        """
        return (await self._run(lambda: self._summary(stream))).next_sequence

    async def seal(self, stream: str) -> None:
        """Force a stream to disk; returns when it would survive a power cut. Later lines are still accepted.

        Raises: StreamNotFound.
        """

        def seal() -> None:
            with self._file_of(stream) as file:
                file.flush()

        await self._run(seal)

    async def delete_streams(self, prefix: str) -> int:
        """Delete every stream whose name begins with `prefix`, which must not be empty; return how many there were."""
        if not prefix:
            raise StoreError("deleting every log stream at once is refused: give a prefix", fault=Fault.USER)
        return await self._run(lambda: sum(self._delete(name) for name in self._names_with(prefix)))

    async def list_streams(
        self,
        prefix: str = "",
        *,
        order_by: StreamOrder = StreamOrder.NAME,
        descending: bool = False,
        limit: int = MAX_LISTED,
        token: str | None = None,
    ) -> StreamPage:
        """Return one page of streams whose names begin with `prefix`.

        Raises: BadToken; BadLogQuery for a bad limit.
        """
        if not 1 <= limit <= MAX_LISTED:
            raise BadLogQuery(f"limit must be 1 to {MAX_LISTED}, got {limit}")
        query = {"list": "streams", "prefix": prefix, "order_by": order_by, "descending": descending}
        after = None if token is None else tokens.read_token(_TOKEN_KEY, token, query=query)

        def find() -> StreamPage:
            keys: list[list[Any]] = [[name] for name in self._names_with(prefix)]
            if order_by is StreamOrder.LAST_EVENT:
                keys = [[self._last_event_ms(name), name] for [name] in keys]
            keys.sort(reverse=descending)
            if after is not None:
                keys = [key for key in keys if (key < after if descending else key > after)]
            page = keys[:limit]
            summaries = [summary for key in page if (summary := self._summary_or_none(key[-1])) is not None]
            has_more = len(keys) > limit
            next_token = tokens.make_token(_TOKEN_KEY, query=query, position=page[-1]) if has_more else None
            return StreamPage(streams=tuple(summaries), next_token=next_token)

        return await self._run(find)

    async def get_events(
        self,
        stream: str,
        *,
        start_ms: int | None = None,
        end_ms: int | None = None,
        from_head: bool = False,
        token: str | None = None,
        limit: int = log_pages.MAX_EVENTS,
    ) -> EventPage:
        """Return one page of a stream, oldest first, by the rules of GetLogEvents (see `log_pages`).

        Args:
            stream: its name.
            start_ms: events of this time and later.
            end_ms: events before this time.
            from_head: without a token, begin with the oldest events and not with the newest.
            token: of an earlier page of this stream.
            limit: of events, 1 to 10,000; a page ends at 1 MiB in any case.

        Raises: StreamNotFound; BadToken; BadLogQuery.
        """
        within = TimeRange(start_ms=start_ms, end_ms=end_ms)
        return await self._run(
            lambda: log_pages.read_page(
                self._view(stream), within=within, from_head=from_head, token=token, limit=limit
            )
        )

    async def filter_events(
        self,
        streams: Sequence[str] | None = None,
        *,
        prefix: str | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
        pattern: str | None = None,
        limit: int = log_pages.MAX_EVENTS,
        token: str | None = None,
    ) -> FilteredPage:
        """Return matching events of many streams, oldest first, by the rules of FilterLogEvents.

        Args:
            streams: names; None for all, or for those with `prefix`. Names that do not exist are passed over.
            prefix: of names; not together with `streams`.
            start_ms: events of this time and later.
            end_ms: events before this time.
            pattern: CloudWatch filter pattern (see `filter_patterns`).
            limit: of events, 1 to 10,000; a page may hold fewer, or none, and still have a token.
            token: of the last page of the same query.

        Raises: BadLogQuery; BadToken.
        """
        if streams is not None and prefix is not None:
            raise BadLogQuery("give either names of log streams or a prefix of names, not both")
        within = TimeRange(start_ms=start_ms, end_ms=end_ms)
        matches = compile_pattern(pattern)
        query = log_pages.query_identity(streams=streams, prefix=prefix, within=within, pattern=pattern)
        position = None if token is None else tokens.read_token(_TOKEN_KEY, token, query=query)

        def search() -> FilteredPage:
            names = self._names_with(prefix or "") if streams is None else sorted(set(streams))
            after = None if position is None else (position[0], position[1], position[2], position[3])
            views = self._views(names, within=within, after_ms=after[0] if after else None)
            events, last_key = log_pages.search(views, within=within, matches=matches, after=after, limit=limit)
            next_token = None
            if last_key is not None:
                next_token = tokens.make_token(_TOKEN_KEY, query=query, position=list(last_key))
            return FilteredPage(events=tuple(events), next_token=next_token)

        return await self._run(search)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreError(f"the log store {self._folder} is closed", fault=Fault.INTERNAL)

        def run() -> T:
            self._ensure_open()
            return work()

        limit = asyncio.timeout(CALL_TIMEOUT_S)
        try:
            async with limit:
                return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StoreError(
                f"the log store {self._folder} gave no answer within {CALL_TIMEOUT_S:g} s: try again, and look for a "
                f"slow disk",
                fault=Fault.INFRASTRUCTURE,
                retryable=True,
            ) from error

    def _ensure_open(self) -> None:
        with self._opening:
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

    def _find_streams(self) -> None:
        entries = {}
        for item in self._folder.iterdir():
            if item.suffix in _LEFTOVER_SUFFIXES:
                item.unlink()
            elif item.suffix == _SUFFIX:
                try:
                    name = _stream_name(item)
                except StoreError as error:
                    _log.warning("left out of the log streams: %s", error.message)
                    continue
                entries[name] = _Entry(name, item)
        with self._registry:
            self._entries = entries
            self._names = sorted(entries)

    def _create(self, stream: str, created_at_ms: int) -> None:
        if not 1 <= len(stream) <= MAX_NAME_LENGTH:
            raise BadLogQuery(
                f"a log stream's name has 1 to {MAX_NAME_LENGTH} characters, got {len(stream)}: {stream[:40]!r}"
            )
        with self._opening:  # one creation at a time, so that two of one name cannot meet
            with self._registry:
                if stream in self._entries:
                    return
            entry = _Entry(stream, self._folder / _file_name(stream))
            entry.path.with_suffix(_INDEX_SUFFIX).unlink(missing_ok=True)  # of an earlier stream of that name
            header = StreamHeader(stream=stream, created_at_ms=created_at_ms, stream_id=secrets.randbits(63))
            create_stream_file(entry.path, header)
            with self._registry:
                self._entries[stream] = entry
                insort(self._names, stream)

    def _delete(self, stream: str) -> bool:
        with self._opening:
            with self._registry:
                entry = self._entries.pop(stream, None)
                if entry is None:
                    return False
                self._names.remove(stream)
                self._opened.pop(stream, None)
            with entry.lock:
                entry.is_deleted = True
                if entry.file is not None:
                    entry.file.close()
                    entry.file = None
                entry.path.unlink(missing_ok=True)
                entry.path.with_suffix(_INDEX_SUFFIX).unlink(missing_ok=True)
        return True

    @contextmanager
    def _file_of(self, stream: str) -> Iterator[StreamFile]:
        """Hold a stream's lock, with its file open."""
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
            yield entry.file
        self._close_longest_unused(entry)

    def _close_longest_unused(self, entry: _Entry) -> None:
        surplus = []
        with self._registry:
            if self._entries.get(entry.name) is entry:
                self._opened[entry.name] = entry
                self._opened.move_to_end(entry.name)
            while len(self._opened) > MAX_OPEN_FILES:
                surplus.append(self._opened.popitem(last=False)[1])
        for unused in surplus:
            with unused.lock:
                if unused.file is not None:
                    unused.summary = _summarise(unused.file)
                    unused.file.close()
                    unused.file = None

    def _view(self, stream: str) -> StreamView:
        with self._file_of(stream) as file:
            return file.view()

    def _views(self, names: Sequence[str], *, within: TimeRange, after_ms: int | None) -> Iterator[StreamView]:
        """Yield views of the streams that have events within a range of time."""
        begin_ms = max(within.start_ms or 0, after_ms or 0)
        for name in names:
            summary = self._summary_or_none(name)
            if summary is None or summary.first_event_ms is None or (summary.last_event_ms or 0) < begin_ms:
                continue
            if within.end_ms is None or summary.first_event_ms < within.end_ms:
                yield self._view(name)

    def _summary(self, stream: str) -> StreamSummary:
        with self._registry:
            entry = self._entries.get(stream)
        if entry is not None:
            with entry.lock:
                if entry.summary is not None and not entry.is_deleted:
                    return entry.summary
        with self._file_of(stream) as file:
            return _summarise(file)

    def _summary_or_none(self, stream: str) -> StreamSummary | None:
        try:
            return self._summary(stream)
        except StreamNotFound:
            return None

    def _last_event_ms(self, stream: str) -> int:
        summary = self._summary_or_none(stream)
        return -1 if summary is None or summary.last_event_ms is None else summary.last_event_ms

    def _names_with(self, prefix: str) -> list[str]:
        with self._registry:
            first = bisect_left(self._names, prefix)
            last = first
            while last < len(self._names) and self._names[last].startswith(prefix):
                last += 1
            return self._names[first:last]

    def _close_files(self) -> None:
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
    """Return the open lock file; the lock ends with the process, however it ends."""
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
