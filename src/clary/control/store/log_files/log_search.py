"""Lines of several streams by time in both directions, with a search that ends in bounded time.

Where: `LogStore.find_lines`, for the console's log page. `log_pages` has CloudWatch's pages, which read many streams in
one direction only.

A place is the key of a line: its time, the index of its stream in the request, and its number in the stream. Streams
are merged by key; within a stream keys only grow, since its times never decrease. A search first looks for the text's
bytes in whole blocks of the file, and splits only matching blocks into lines: a million lines take a fraction of a
second. The case of ASCII letters does not count.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clary.base.errors import StoreError
from clary.control.store.log_files.log_pages import MAX_PAGE_BYTES
from clary.control.store.log_files.log_records import NO_RANK, LogRecord
from clary.control.store.log_files.stream_file import StreamView

MAX_LINES = 2000  # most lines of one page
SEARCH_S = 0.5  # a longer search returns the lines found so far, and the place at which to continue


class LinePlace(NamedTuple):
    """The key of a line."""

    at_ms: int
    stream: int  # index of its stream in the request
    sequence: int


class FoundLine(NamedTuple):
    """A line with its place."""

    place: LinePlace
    rank: int | None
    text: str


@dataclass(frozen=True, kw_only=True)
class LineQuery:
    """A query of lines: filters, direction and limit."""

    needle: str = ""  # only lines that contain this text
    rank: int | None = None  # only lines of this rank
    start: LinePlace | None = None  # search from here; None: from the newest line (backward) or the oldest (forward)
    # Forward only: for each stream, how many of its lines earlier pages have searched; None begins at `start`.
    seen: tuple[int | None, ...] = ()
    is_backward: bool = True  # whether to search from newer to older lines
    limit: int = 200
    begin_ms: int = 0  # lines before this time have expired


@dataclass(frozen=True, kw_only=True)
class FoundLines:
    """A page: lines in the direction of the query.

    Args:
        lines: fewer than the limit if no more match, the page would be too large, or the time ran out.
        searched_to: place of the last searched line; None if no line was searched.
        is_complete: whether no more lines match in this direction.
        num_lines: number of lines of the requested streams that have not expired, whether or not they match.
        seen: value of `LineQuery.seen` for the next forward query; None for missing streams. A line may arrive after
            lines of other hosts with later times: a query by time alone would miss it.
    """

    lines: tuple[FoundLine, ...]
    searched_to: LinePlace | None
    is_complete: bool
    num_lines: int
    seen: tuple[int | None, ...]


def end_of(views: Sequence[StreamView | None]) -> LinePlace:
    """Return the place of the newest line, or a place before all lines if no stream has a line."""
    ends = [
        LinePlace(record.at_ms, number, record.sequence)
        for number, view in enumerate(views)
        if view is not None
        for record in view.backward(view.next_sequence - 1, view.next_sequence)
    ]
    return max(ends, default=LinePlace(0, 0, -1))


def find_lines(views: Sequence[StreamView | None], query: LineQuery, *, budget_s: float = SEARCH_S) -> FoundLines:
    """Return a page of the lines of all views.

    Args:
        views: one per requested stream, in order; None for a missing stream.
        query: selects the lines.
        budget_s: maximum duration of the search in seconds; each call searches at least one block of lines.

    Raises: StoreError for a bad limit; StreamDamaged.
    """
    if not 1 <= query.limit <= MAX_LINES:
        raise StoreError(
            f"limit must be 1 to {MAX_LINES}, got {query.limit}: ask for fewer lines and use several pages"
        )
    deadline = time.monotonic() + budget_s
    lines: list[FoundLine] = []
    size_bytes = 0
    searched_to: LinePlace | None = None
    seen = _seen_before(views, query)

    def page(*, is_complete: bool) -> FoundLines:
        if is_complete:
            ends = (None if view is None else view.next_sequence for view in views)
            seen.update((number, end) for number, end in enumerate(ends) if end is not None)
        counts = tuple(seen.get(number) for number in range(len(views)))
        return FoundLines(
            lines=tuple(lines),
            searched_to=searched_to,
            is_complete=is_complete,
            num_lines=sum(_num_lines(view, query) for view in views if view is not None),
            seen=counts,
        )

    for num_steps, (place, record) in enumerate(_merged(views, query)):
        if record is not None:
            size_bytes += record.size_bytes
            if len(lines) >= query.limit or (lines and size_bytes > MAX_PAGE_BYTES):
                return page(is_complete=False)
            rank = None if record.rank == NO_RANK else record.rank
            lines.append(FoundLine(place, rank, record.message))
        searched_to = place
        if not query.is_backward:
            seen[place.stream] = place.sequence + 1
        if num_steps and time.monotonic() > deadline:
            return page(is_complete=False)
    return page(is_complete=True)


def _num_lines(view: StreamView, query: LineQuery) -> int:
    return view.next_sequence - (view.first_at_or_after(query.begin_ms) if query.begin_ms else 0)


def _seen_before(views: Sequence[StreamView | None], query: LineQuery) -> dict[int, int | None]:
    """Return each stream's number of lines before a forward page, or its total number for a backward page."""
    seen: dict[int, int | None] = dict(enumerate(query.seen))
    for number, view in enumerate(views):
        if view is None:
            continue
        if query.is_backward:
            seen[number] = view.next_sequence
        elif seen.get(number) is None:
            seen[number] = 0 if query.start is None else _border(view, number, query.start, is_inside=True)
    return seen


_Step = tuple[LinePlace, LogRecord | None]  # a matching line; or a place up to which no further line matches


def _merged(views: Sequence[StreamView | None], query: LineQuery) -> Iterator[_Step]:
    """Yield the steps of all streams in the direction of the query."""
    streams = [_steps(view, number, query) for number, view in enumerate(views) if view is not None]
    # Places of two streams are never equal, so records are never compared.
    yield from heapq.merge(*streams, key=lambda step: step[0], reverse=query.is_backward)


def _steps(view: StreamView, number: int, query: LineQuery) -> Iterator[_Step]:
    """Yield a stream's matching lines, and the place reached in blocks that do not end with a matching line."""
    first = view.first_at_or_after(query.begin_ms) if query.begin_ms else 0
    stop = view.next_sequence
    seen = query.seen[number] if number < len(query.seen) and not query.is_backward else None
    if seen is not None:
        first = max(first, seen)
    elif query.start is not None:
        border = _border(view, number, query.start, is_inside=not query.is_backward)
        first, stop = (first, min(stop, border)) if query.is_backward else (max(first, border), stop)
    if first >= stop:
        return
    needle = _folded(query.needle)
    blocks = range(view.block_of(first), view.block_of(stop - 1) + 1)
    for block in reversed(blocks) if query.is_backward else blocks:
        data = view.block_bytes(block)
        begin = max(first, view.index.block_sequences[block])
        if needle and needle not in data.lower():
            yield _passed(view, number, block, begin, data, query), None
            continue
        records = [record for record in view.block_records(block, data) if first <= record.sequence < stop]
        for record in reversed(records) if query.is_backward else records:
            place = LinePlace(record.at_ms, number, record.sequence)
            is_wanted = query.rank in (None, record.rank) and (not needle or needle in _folded(record.message))
            if is_wanted:
                yield place, record
            elif record is (records[0] if query.is_backward else records[-1]):
                yield place, None


def _passed(view: StreamView, number: int, block: int, begin: int, data: bytes, query: LineQuery) -> LinePlace:
    """Return the place that a search has reached after skipping a whole block."""
    times = view.index.block_times_ms
    if query.is_backward:
        # The block's first line. If the range begins within the block, the range's first line is not older than the
        # block's first line.
        return LinePlace(times[block], number, begin)
    if block + 1 < view.num_blocks:
        # The place just before the next block's first line, known without splitting this block into lines.
        return LinePlace(times[block + 1], number, view.index.block_sequences[block + 1] - 1)
    last = view.block_records(block, data)[-1]
    return LinePlace(last.at_ms, number, last.sequence)


def _border(view: StreamView, number: int, start: LinePlace, *, is_inside: bool) -> int:
    """Return the number of the stream's first line at or after a place.

    Args:
        view: view of the stream.
        number: index of the stream in the request.
        start: the place.
        is_inside: whether to skip a line at the place itself, as a forward search does.
    """
    if number == start.stream:
        return start.sequence + 1 if is_inside else start.sequence
    # Of lines with the same time, lines of streams with lower indices precede the place.
    return view.first_at_or_after(start.at_ms + 1 if number < start.stream else start.at_ms)


def _folded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").lower()
