"""Log streams in a folder: each line is appended exactly once and survives restarts; pages follow CloudWatch's rules.

Where: the agents' service appends batches, the logs service answers DescribeLogStreams, GetLogEvents and
FilterLogEvents from here. Each stream is one file (`stream_file`, `stream_registry`); `log_pages` makes pages. When a
call returns, the kernel has the written lines, so that they survive the death of this process; `seal` forces them to
disk.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from clary.base.clock import Clock, SystemClock
from clary.base.errors import Fault, StoreError
from clary.contract.agent_protocol import LogBlock
from clary.control.store import tokens
from clary.control.store.errors import BadLogQuery, StreamDamaged, StreamNotFound
from clary.control.store.log_files import log_pages, log_scan, log_search
from clary.control.store.log_files.filter_patterns import compile_pattern
from clary.control.store.log_files.log_pages import EventPage, FilteredPage, SearchKey, TimeRange
from clary.control.store.log_files.log_retention import LogRetention
from clary.control.store.log_files.log_scan import LogScan
from clary.control.store.log_files.log_search import FoundLines, LinePlace, LineQuery
from clary.control.store.log_files.stream_file import StreamView
from clary.control.store.log_files.stream_registry import StreamRegistry, StreamSummary
from clary.control.turns import Turns

T = TypeVar("T")

NUM_THREADS = 4
NUM_SEARCHERS = 2
CALL_TIMEOUT_S = 60.0
MAX_LISTED = 50  # DescribeLogStreams, limit
REMOVED_AT_ONCE = 200  # streams checked in one call, far fewer than CALL_TIMEOUT_S allows
# Log tokens grant no access, so their digest only has to detect mistakes.
_TOKEN_KEY = b"clary log pages"

_log = logging.getLogger(__name__)


class StreamOrder(StrEnum):
    """Sort order of streams, spelt as in DescribeLogStreams."""

    NAME = "LogStreamName"
    LAST_EVENT = "LastEventTime"  # streams without events count as oldest


@dataclass(frozen=True, kw_only=True)
class StreamPage:
    """One page of streams; `next_token` is None on the last page."""

    streams: tuple[StreamSummary, ...]
    next_token: str | None


class LogStore:
    """All log streams of a service.

    Args:
        folder: holds one file per stream and belongs to this store alone; the first call creates it.
        clock: gives the ingestion times and ages of lines.
        retention_days: days for which lines are kept, unless `set_retention` sets another number; 0 keeps them for
            ever.
    """

    def __init__(self, folder: Path | str, *, clock: Clock | None = None, retention_days: int = 0) -> None:
        self._folder = Path(folder)
        self._clock = clock or SystemClock()
        self._registry = StreamRegistry(self._folder)
        self._retention = LogRetention(self._folder, default_days=retention_days)
        self._setting_retention = asyncio.Lock()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="clary-log-store")
        # Separate threads, because a search that takes a second must not delay the storing of lines.
        self._searchers = ThreadPoolExecutor(NUM_SEARCHERS, thread_name_prefix="clary-log-search")
        self._turns = Turns(1)
        self._is_closed = False

    async def open(self) -> None:
        """Lock the folder and find its streams; every other method does so at its first call.

        Raises: StoreError if another process holds the folder's lock, or the folder cannot be used.
        """
        await self._run(lambda: None)

    async def close(self) -> None:
        """Finish pending calls, close all files and release the folder; closing twice does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.to_thread(self._searchers.shutdown)
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._registry.close)

    async def create_stream(self, stream: str, created_at: datetime) -> None:
        """Create an empty stream; an existing stream is unchanged."""
        await self._run(lambda: self._registry.create(stream, int(created_at.timestamp() * 1000)))

    async def append(self, stream: str, first_sequence: int, blocks: Sequence[LogBlock]) -> int:
        """Store lines exactly once and return the number of the next expected line.

        Args:
            stream: its name.
            first_sequence: number of the first line within the stream, from 0. Lines that are stored already are
                dropped, so a batch may be sent again if its answer was lost.
            blocks: their lines are numbered without gaps.

        Raises: StreamNotFound; SequenceGap if lines before the first are missing. Then no line of the batch is stored.
        """
        if first_sequence < 0:
            raise StoreError(f"log stream {stream!r}: line numbers begin at 0, got {first_sequence}", fault=Fault.USER)
        now_ms = int(self._clock.now().timestamp() * 1000)

        def append() -> int:
            with self._registry.file_of(stream) as file:
                return file.append(first_sequence, blocks, now_ms=now_ms)

        return await self._run(append)

    async def next_sequence(self, stream: str) -> int:
        """Return the number of the next line that a stream expects.

        Raises: StreamNotFound.
        """
        return (await self._run(lambda: self._registry.summary(stream))).next_sequence

    async def take_up(self, stream: str) -> int:
        """Return the number of the next line of a stream to which another attempt will write; 0 if it does not exist.

        The file of a damaged stream, as a power cut may leave it, is set aside: the attempt writes to a new stream.
        """
        try:
            return await self.next_sequence(stream)
        except StreamNotFound:
            return 0
        except StreamDamaged as error:
            kept = await self._run(lambda: self._registry.set_aside(stream))
            _log.warning("%s; its lines stay in %s, and the stream begins anew", error.message, kept)
            return 0

    async def seal(self, stream: str) -> None:
        """Force a stream to disk; its lines then survive a power cut. Later lines are still accepted.

        Raises: StreamNotFound.
        """

        def seal() -> None:
            with self._registry.file_of(stream) as file:
                file.flush()

        await self._run(seal)

    async def delete_streams(self, prefix: str) -> int:
        """Delete every stream whose name begins with `prefix`, which must not be empty; return their number.

        Raises: StoreError for an empty prefix.
        """
        if not prefix:
            raise StoreError("deleting every log stream at once is refused: give a prefix", fault=Fault.USER)
        return await self._run(lambda: sum(self._registry.delete(name) for name in self._registry.names_with(prefix)))

    async def retention_days(self) -> int:
        """Return the days for which lines are kept; 0 is for ever."""
        return await self._run(self._retention.days)

    async def set_retention(self, days: int | None) -> None:
        """Set the number of days for which lines are kept; None restores the store's default.

        It applies at once, also to stored lines.
        """
        async with self._setting_retention:
            await self._run(lambda: self._retention.put(days))

    async def remove_expired(self, is_in_use: Callable[[str], bool]) -> int:
        """Delete the streams whose lines have all expired; return their number.

        Args:
            is_in_use: tells whether a stream may still get lines; such a stream is kept. It is called from a thread of
                this store.
        """
        begin_ms = await self._run(lambda: self._retention.begin_ms(self._clock.now()))
        if begin_ms is None:
            return 0

        def remove(names: Sequence[str]) -> int:
            return sum(
                self._registry.delete(name)
                for name in names
                if not is_in_use(name)
                and (summary := self._summary_or_none(name)) is not None
                and max(summary.last_event_ms or 0, summary.created_at_ms) < begin_ms
            )

        names = await self._run(lambda: self._registry.names_with(""))
        num_removed = 0
        for first in range(0, len(names), REMOVED_AT_ONCE):
            num_removed += await self._run(partial(remove, names[first : first + REMOVED_AT_ONCE]))
        return num_removed

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

        Damaged streams are left out; reading the events of such a stream raises StreamDamaged.

        Args:
            prefix: prefix of the streams' names; empty for all streams.
            order_by: name, or time of the last event.
            descending: whether the order is reversed.
            limit: maximum number of streams, 1 to `MAX_LISTED`.
            token: token of the previous page of the same query.
        Raises: BadToken; BadLogQuery for a bad limit.
        """
        if not 1 <= limit <= MAX_LISTED:
            raise BadLogQuery(f"limit must be 1 to {MAX_LISTED}, got {limit}")
        query = {"list": "streams", "prefix": prefix, "order_by": order_by, "descending": descending}
        after = None if token is None else tokens.read_token(_TOKEN_KEY, token, query=query)

        def find() -> StreamPage:
            keys: list[list[Any]] = [[name] for name in self._registry.names_with(prefix)]
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
            from_head: whether a request without a token begins with the oldest events; else with the newest.
            token: token of an earlier page of this stream.
            limit: maximum number of events, 1 to 10,000; a page ends at 1 MiB in any case.

        Raises: StreamNotFound; BadToken; BadLogQuery.
        """
        within = TimeRange(start_ms=start_ms, end_ms=end_ms)
        return await self._run(
            lambda: log_pages.read_page(
                self._registry.view(stream), within=self._kept(within), from_head=from_head, token=token, limit=limit
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
        client: str = "",
    ) -> FilteredPage:
        """Return matching events of many streams, oldest first, by the rules of FilterLogEvents.

        Args:
            streams: their names; None for all streams with `prefix`. On pages with a token, missing streams are
                skipped.
            prefix: prefix of the streams' names; not together with `streams`.
            start_ms: events of this time and later.
            end_ms: events before this time.
            pattern: CloudWatch filter pattern (see `filter_patterns`).
            limit: maximum number of events, 1 to 10,000; a page with a token may hold fewer events, or no event at all.
            token: token of the previous page of the same query.
            client: a client of which one search runs at once; empty for any number.

        Raises: StreamNotFound for a name in `streams`; BadLogQuery; BadToken.
        """
        if streams is not None and prefix is not None:
            raise BadLogQuery("give either names of log streams or a prefix of names, not both")
        within = TimeRange(start_ms=start_ms, end_ms=end_ms)
        matches = compile_pattern(pattern)
        query = log_pages.query_identity(streams=streams, prefix=prefix, within=within, pattern=pattern)
        position = None if token is None else tokens.read_token(_TOKEN_KEY, token, query=query)
        has_ended = threading.Event()

        def search() -> FilteredPage:
            if streams is None:
                names = self._registry.names_with(prefix or "")
            else:
                names = sorted(set(streams))
                if position is None:
                    self._require(names)
            after: SearchKey | None = (position[0], position[1], position[2], position[3]) if position else None
            kept = self._kept(within)  # not part of the query's identity: it changes with the time
            views = self._views(names, within=kept, after_ms=after[0] if after else None)
            events, last_key = log_pages.search(
                views, within=kept, matches=matches, after=after, limit=limit, is_stopped=has_ended.is_set
            )
            next_token = None
            if last_key is not None:
                next_token = tokens.make_token(_TOKEN_KEY, query=query, position=list(last_key))
            return FilteredPage(events=tuple(events), next_token=next_token)

        try:
            return await self._run(search, threads=self._searchers, client=client)
        finally:
            has_ended.set()  # after a timeout the thread would search on

    async def find_lines(self, streams: Sequence[str | None], query: LineQuery) -> tuple[FoundLines, LinePlace]:
        """Return a page of lines by time, and the place of the newest line of all streams (see `log_search`).

        Args:
            streams: names; a place refers to a stream by its index in this list. None stands for an omitted stream. A
                missing stream has no lines.
            query: selects the lines and the direction.

        Raises: StoreError for a bad limit; StreamDamaged.
        """

        def find() -> tuple[FoundLines, LinePlace]:
            views = [None if name is None else self._view_or_none(name) for name in streams]
            begin_ms = self._kept(TimeRange(start_ms=query.begin_ms)).start_ms or 0
            return log_search.find_lines(views, replace(query, begin_ms=begin_ms)), log_search.end_of(views)

        return await self._run(find, threads=self._searchers)

    def scan(self, prefix: str, *, start_ms: int, end_ms: int) -> LogScan:
        """Return a scan of the lines of all streams with a prefix, within a range of time; `advance` reads them.

        Args:
            prefix: prefix of streams' names.
            start_ms: begin of the range, in ms since 1970.
            end_ms: end of the range, exclusive.
        """
        return LogScan(prefix, TimeRange(start_ms=start_ms, end_ms=end_ms))

    async def advance(self, scan: LogScan, take: log_scan.Take, *, budget_s: float) -> bool:
        """Pass the next lines of a scan to `take` for about `budget_s` seconds; return whether the scan has ended.

        Raises: StreamDamaged; errors of `take`. After an error, a scan cannot be continued.
        """

        def work() -> bool:
            if scan.steps is None:
                kept = self._kept(scan.within)
                scan.steps = log_scan.steps_of(
                    self._registry.names_with(scan.prefix),
                    lambda name: self._views([name], within=kept, after_ms=None),
                    kept,
                )
            return log_scan.advance(scan.steps, take, budget_s=budget_s)

        return await self._run(work, threads=self._searchers)

    async def _run(self, work: Callable[[], T], *, threads: ThreadPoolExecutor | None = None, client: str = "") -> T:
        if self._is_closed:
            raise StoreError(f"the log store {self._folder} is closed", fault=Fault.INTERNAL)

        def run() -> T:
            self._registry.ensure_open()
            return work()

        limit = asyncio.timeout(CALL_TIMEOUT_S)
        try:
            async with limit, self._turns.taken(client) if client else nullcontext():
                return await asyncio.get_running_loop().run_in_executor(threads or self._threads, run)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StoreError(
                f"the log store {self._folder} gave no answer within {CALL_TIMEOUT_S:g} s: try again, and look for a "
                f"slow disk",
                fault=Fault.INFRASTRUCTURE,
                retryable=True,
            ) from error

    def _kept(self, within: TimeRange) -> TimeRange:
        """Return the part of a range whose lines have not expired."""
        begin_ms = self._retention.begin_ms(self._clock.now())
        return within if begin_ms is None else replace(within, start_ms=max(within.start_ms or 0, begin_ms))

    def _views(self, names: Sequence[str], *, within: TimeRange, after_ms: int | None) -> Iterator[StreamView]:
        """Yield views of the streams that have events within a range of time."""
        begin_ms = max(within.start_ms or 0, after_ms or 0)
        for name in names:
            summary = self._summary_or_none(name)
            if summary is None or summary.first_event_ms is None or (summary.last_event_ms or 0) < begin_ms:
                continue
            if within.end_ms is None or summary.first_event_ms < within.end_ms:
                yield self._registry.view(name)

    def _summary_or_none(self, stream: str) -> StreamSummary | None:
        """Return a stream's summary; None for a deleted or damaged one, which must not hide other streams."""
        try:
            return self._registry.summary(stream)
        except StreamNotFound:
            return None
        except StreamDamaged as error:
            _log.warning("left out: %s", error.message)
            return None

    def _require(self, names: Sequence[str]) -> None:
        """Raise StreamNotFound for a stream that does not exist; a damaged one and one without lines exist."""
        for name in names:
            try:
                self._registry.summary(name)
            except StreamDamaged:
                continue  # `_views` notes it

    def _view_or_none(self, stream: str) -> StreamView | None:
        try:
            return self._registry.view(stream)
        except StreamNotFound:
            return None

    def _last_event_ms(self, stream: str) -> int:
        summary = self._summary_or_none(stream)
        return -1 if summary is None or summary.last_event_ms is None else summary.last_event_ms
