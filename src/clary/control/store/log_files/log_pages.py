"""Pages of log events with CloudWatch's rules for tokens.

Where: `LogStore.get_events` (GetLogEvents, one stream) and `LogStore.filter_events` (FilterLogEvents, many streams by
time). Both work on views of streams, so lines that arrive meanwhile do not disturb a page.

GetLogEvents always returns both tokens. A token names a position between two lines: `f/...` continues after it, `b/...`
before it. A page without new lines returns the request's token, and the same token yields new lines once they exist.
Source: AWS API reference, GetLogEvents and FilterLogEvents.
"""

from __future__ import annotations

import heapq
import math
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from clary.control.store.errors import BadLogQuery, BadToken
from clary.control.store.log_files.log_records import EVENT_OVERHEAD_BYTES, NO_RANK, LogRecord
from clary.control.store.log_files.stream_file import StreamView

MAX_EVENTS = 10_000  # GetLogEvents and FilterLogEvents, limit
MAX_PAGE_BYTES = 1024 * 1024
MAX_SEARCHED = 100_000  # lines that one FilterLogEvents call reads at most; then it returns a token
SEARCH_S = 2.0  # a longer FilterLogEvents call returns the events found so far, and a token
_END_OF_TIME_MS = 2**63 - 1

_PLACE = re.compile(r"(?P<way>[fb])/(?P<sequence>[0-9]{20})(?P<check>[0-9]{10})/s")


class LogEvent(NamedTuple):
    """One event as clients see it."""

    timestamp_ms: int
    ingestion_ms: int
    message: str
    event_id: str  # digits; permanent and unique
    stream: str
    rank: int | None  # rank of the process that wrote the line, if known


@dataclass(frozen=True, kw_only=True)
class EventPage:
    """A page of one stream, oldest first; the tokens are never empty."""

    events: tuple[LogEvent, ...]
    next_forward_token: str
    next_backward_token: str


@dataclass(frozen=True, kw_only=True)
class FilteredPage:
    """A page of many streams, oldest first; `next_token` is None once all lines were searched."""

    events: tuple[LogEvent, ...]
    next_token: str | None


@dataclass(frozen=True, kw_only=True)
class TimeRange:
    """The time from `start_ms` (inclusive) to `end_ms` (exclusive); None leaves that end open."""

    start_ms: int | None = None
    end_ms: int | None = None

    def limits(self, view: StreamView) -> tuple[int, int]:
        """Return the numbers of the range's first record and of the record after its last."""
        first = 0 if self.start_ms is None else view.first_at_or_after(self.start_ms)
        stop = view.next_sequence if self.end_ms is None else view.first_at_or_after(self.end_ms)
        return first, stop


SearchKey = tuple[int, int, str, int]  # time, ingestion time, stream, sequence: the order of FilterLogEvents


def read_page(view: StreamView, *, within: TimeRange, from_head: bool, token: str | None, limit: int) -> EventPage:
    """Return the page of one stream at `token`; without a token, the first or last page of the range.

    Args:
        view: view of the stream.
        within: the range of time.
        from_head: whether the page without a token is the first one.
        token: token of an earlier page of this stream; it includes the direction.
        limit: maximum number of events, 1 to `MAX_EVENTS`; a page ends at 1 MiB in any case.
    Raises: BadToken for a token of another stream or a forged one; BadLogQuery for a bad limit.
    """
    _check_limit(limit)
    first, stop = within.limits(view)
    if token is None:
        goes_forward, place = from_head, first if from_head else stop
    else:
        goes_forward, place = _read_place(view, token)
    records = (
        _take(view.forward(max(first, place), stop), limit)
        if goes_forward
        else _take(view.backward(first, min(stop, place)), limit)[::-1]
    )
    begin, end = (records[0].sequence, records[-1].sequence + 1) if records else (place, place)
    return EventPage(
        events=tuple(_event(view, record) for record in records),
        next_forward_token=_make_place(view, "f", end),
        next_backward_token=_make_place(view, "b", begin),
    )


def search(
    views: Iterable[StreamView],
    *,
    within: TimeRange,
    matches: Callable[[str], bool],
    after: SearchKey | None,
    limit: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[list[LogEvent], SearchKey | None]:
    """Return the next matching events of many streams in order of time, and the key after which to continue.

    Args:
        views: views of the streams; a stream's lines are read only when the search reaches their time.
        within: the range of time.
        matches: decides whether a message is wanted.
        after: key of the last searched line; None to begin.
        limit: maximum number of events.
        is_stopped: whether nobody waits for the events any more; checked before each line, in the caller's thread.

    Raises: BadLogQuery for a bad limit.
    """
    _check_limit(limit)
    events: list[LogEvent] = []
    size_bytes = 0
    last_key = after
    deadline = math.inf  # begins with the first line, so that each call searches one at least
    lines = _merge(views, within=within, after=after, is_stopped=is_stopped)
    for num_searched, (key, view, record) in enumerate(lines):
        if num_searched == 0:
            deadline = time.monotonic() + SEARCH_S
        elif time.monotonic() > deadline or is_stopped():
            return events, last_key
        is_wanted = matches(record.message)
        size_bytes += record.size_bytes + EVENT_OVERHEAD_BYTES if is_wanted else 0
        if len(events) >= limit or num_searched >= MAX_SEARCHED or (events and size_bytes > MAX_PAGE_BYTES):
            return events, last_key
        if is_wanted:
            events.append(_event(view, record))
        last_key = key
    return events, None


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_EVENTS:
        raise BadLogQuery(f"limit must be 1 to {MAX_EVENTS}, got {limit}")


def _take(records: Iterator[LogRecord], limit: int) -> list[LogRecord]:
    """Return records up to the size of a page; the first record always fits."""
    taken: list[LogRecord] = []
    size_bytes = 0
    for record in records:
        size_bytes += record.size_bytes + EVENT_OVERHEAD_BYTES
        if len(taken) >= limit or (taken and size_bytes > MAX_PAGE_BYTES):
            break
        taken.append(record)
    return taken


def _merge(
    views: Iterable[StreamView], *, within: TimeRange, after: SearchKey | None, is_stopped: Callable[[], bool]
) -> Iterator[tuple[SearchKey, StreamView, LogRecord]]:
    """Yield the records of all views after `after`, in order of `SearchKey`; a stopped search skips no further ones."""
    # A stream stays unread in the heap, under the time of its first line, until that time is reached: streams of jobs
    # that ran one after the other are never in memory together.
    begin_ms = max(within.start_ms or 0, after[0] if after else 0)
    heap: list[tuple[SearchKey, int, StreamView, Iterator[LogRecord] | None, LogRecord | None]] = []
    for number, view in enumerate(views):
        index = view.index
        if index.first_at_ms is None or (index.last_at_ms or 0) < begin_ms:
            continue
        if index.first_at_ms < (_END_OF_TIME_MS if within.end_ms is None else within.end_ms):
            waiting_key = (max(index.first_at_ms, begin_ms), -1, view.header.stream, -1)
            heap.append((waiting_key, number, view, None, None))
    heapq.heapify(heap)
    while heap:
        key, number, view, records, record = heapq.heappop(heap)
        if record is not None:
            yield key, view, record
        if records is None:
            first, stop = TimeRange(start_ms=begin_ms, end_ms=within.end_ms).limits(view)
            records = view.forward(first, stop)
        following = next(
            (found for found in records if after is None or _key(view, found) > after or is_stopped()), None
        )
        if following is not None:
            heapq.heappush(heap, (_key(view, following), number, view, records, following))


def _key(view: StreamView, record: LogRecord) -> SearchKey:
    return record.at_ms, record.ingestion_ms, view.header.stream, record.sequence


def _event(view: StreamView, record: LogRecord) -> LogEvent:
    header = view.header
    return LogEvent(
        timestamp_ms=record.at_ms,
        ingestion_ms=record.ingestion_ms,
        message=record.message,
        event_id=f"{record.at_ms:015d}{header.stream_id:020d}{record.sequence:015d}",
        stream=header.stream,
        rank=None if record.rank == NO_RANK else record.rank,
    )


def _make_place(view: StreamView, way: str, sequence: int) -> str:
    return f"{way}/{sequence:020d}{_check_number(view):010d}/s"


def _read_place(view: StreamView, token: str) -> tuple[bool, int]:
    """Return whether a token leads forward, and its position."""
    found = _PLACE.fullmatch(token)
    if found is None or int(found["check"]) != _check_number(view) or int(found["sequence"]) > view.next_sequence:
        raise BadToken(
            f"the token {token[:60]!r} was not given out for log stream {view.header.stream!r}: expected "
            "a token of an earlier page of this stream, unchanged; ask again without a token"
        )
    return found["way"] == "f", int(found["sequence"])


def _check_number(view: StreamView) -> int:
    return zlib.crc32(str(view.header.stream_id).encode("ascii"))


def query_identity(
    *, streams: Iterable[str] | None, prefix: str | None, within: TimeRange, pattern: str | None
) -> dict[str, Any]:
    """Return the identity of a FilterLogEvents query; its page tokens are bound to it.

    Args:
        streams: names, in any order; None for all streams with `prefix`.
        prefix: prefix of streams' names.
        within: the range of time.
        pattern: filter pattern of the lines.
    """
    names = None if streams is None else sorted(streams)
    return {"filter": "events", "streams": names, "prefix": prefix, "pattern": pattern, **within.__dict__}
