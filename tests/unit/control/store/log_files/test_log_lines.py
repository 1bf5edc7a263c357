"""Lines of several streams by time in both directions: pages, searches in bounded time, following growing logs."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from log_lines import CREATED, STREAM, lines

from clary.base.errors import StoreError
from clary.contract.agent_protocol import LogBlock
from clary.control.store.log_files import log_search
from clary.control.store.log_files.log_search import MAX_LINES, FoundLine, LinePlace, LineQuery
from clary.control.store.log_files.logs import LogStore

STREAMS = [f"job/algo-{number}-1" for number in range(1, 5)]
WORDS = ("Odd", "even", "caf\u00e9 EVEN")
SEARCHES = (("", None), ("even", None), ("ODD", 1), ("CAF\u00e9", None), ("", 0), ("1-17", None), ("nobody", None))
MAX_PAGES = 3000


async def fill(logs: LogStore, seed: int, *, per_stream: int = 60) -> list[FoundLine]:
    """Fill streams with lines that share few distinct times; return all lines, oldest first."""
    randomly = random.Random(seed)
    everything = []
    for number, stream in enumerate(STREAMS):
        if number == 2:
            continue  # a host without lines
        await logs.create_stream(stream, CREATED)
        times = sorted(randomly.randrange(1, 40) for _ in range(per_stream))
        texts = [f"{randomly.choice(WORDS)} {number}-{i}" for i in range(per_stream)]
        ranks = [randomly.choice((None, 0, 1)) for _ in range(per_stream)]
        blocks = [LogBlock(at_ms=at, text=text, rank=rank) for at, text, rank in zip(times, texts, ranks, strict=True)]
        await logs.append(stream, 0, blocks)
        everything += [
            FoundLine(LinePlace(at, number, i), rank, text)
            for i, (at, rank, text) in enumerate(zip(times, ranks, texts, strict=True))
        ]
    return sorted(everything, key=lambda line: line.place)


async def walk(logs: LogStore, query: LineQuery) -> list[FoundLine]:
    """Return the lines of all pages in the direction of the query."""
    found: list[FoundLine] = []
    for _ in range(MAX_PAGES):
        page, _end = await logs.find_lines(STREAMS, query)
        assert len(page.lines) <= query.limit
        found += page.lines
        if page.is_complete:
            return found
        assert page.searched_to is not None
        assert page.searched_to != query.start, "each page comes further"
        query = replace(query, start=page.searched_to)
    raise AssertionError("paging does not end")


@pytest.fixture(params=[0.5, -1.0], ids=["in time", "always too late"])
def budget(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., log_search.FoundLines] = log_search.find_lines
    seconds: float = request.param
    monkeypatch.setattr(log_search, "find_lines", lambda views, query: real(views, query, budget_s=seconds))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [1, 7, MAX_LINES])
async def test_pages_in_both_directions_equal_a_scan_of_all_lines(
    logs: LogStore, short_blocks: None, budget: None, seed: int, limit: int
) -> None:
    everything = await fill(logs, seed)
    for needle, rank in SEARCHES:
        wanted = [
            line
            for line in everything
            if needle.encode().lower() in line.text.encode().lower() and rank in (None, line.rank)
        ]
        query = LineQuery(needle=needle, rank=rank, limit=limit)
        assert await walk(logs, query) == wanted[::-1], (needle, rank)
        assert await walk(logs, replace(query, is_backward=False)) == wanted, (needle, rank)


async def test_the_lines_before_and_after_any_line_are_all_others(logs: LogStore, short_blocks: None) -> None:
    everything = await fill(logs, 5, per_stream=20)
    for number, line in enumerate(everything):
        query = LineQuery(start=line.place, limit=MAX_LINES)
        assert await walk(logs, query) == everything[:number][::-1]
        assert await walk(logs, replace(query, is_backward=False)) == everything[number + 1 :]


async def test_a_stream_that_is_left_out_keeps_its_index(logs: LogStore) -> None:
    await fill(logs, 1)
    page, end = await logs.find_lines([None, STREAMS[1], None, None], LineQuery(limit=MAX_LINES))
    assert {line.place.stream for line in page.lines} == {1}
    assert end == page.lines[0].place


async def test_following_from_the_end_finds_each_new_line_once(logs: LogStore, short_blocks: None) -> None:
    await fill(logs, 2)
    _page, end = await logs.find_lines(STREAMS, LineQuery(needle="new"))
    found: list[str] = []
    for number in range(10):
        # A new line has the time of the last line, or a later time.
        await logs.append(
            STREAMS[number % 2], 60 + number // 2, [LogBlock(at_ms=100 + number // 3, text=f"new {number}")]
        )
        page, _end = await logs.find_lines(STREAMS, LineQuery(needle="new", start=end, is_backward=False))
        found += [line.text for line in page.lines]
        end = page.searched_to or end
    assert len(found) == len(set(found))
    assert set(found) <= {f"new {number}" for number in range(10)}
    page, _end = await logs.find_lines([STREAM], LineQuery())
    assert (page.lines, page.searched_to, page.is_complete) == ((), None, True)


async def test_a_search_without_matches_returns_the_position_that_it_reached(
    logs: LogStore, short_blocks: None
) -> None:
    await logs.append(STREAM, 0, lines(*(f"line {number}" for number in range(10))))
    page, end = await logs.find_lines([STREAM], LineQuery(needle="nobody", is_backward=False))
    assert (page.lines, page.is_complete) == ((), True)
    assert page.searched_to == end == LinePlace(1009, 0, 9)  # the next search starts there
    page, _end = await logs.find_lines([STREAM], LineQuery(needle="nobody"))
    assert page.searched_to == LinePlace(1000, 0, 0)


async def test_a_page_ends_before_it_exceeds_its_size(logs: LogStore) -> None:
    long = "x" * 200_000
    await logs.append(STREAM, 0, lines(*[long] * 8))
    page, _end = await logs.find_lines([STREAM], LineQuery())
    assert 1 <= len(page.lines) < 8
    assert not page.is_complete


@pytest.mark.parametrize("limit", [0, -1, MAX_LINES + 1])
async def test_a_bad_limit_is_refused(logs: LogStore, limit: int) -> None:
    with pytest.raises(StoreError, match="limit must be 1 to"):
        await logs.find_lines([STREAM], LineQuery(limit=limit))


async def test_unpaired_surrogates_are_found_unchanged(logs: LogStore) -> None:
    await logs.append(STREAM, 0, lines("a \udcff b", "c"))
    page, _end = await logs.find_lines([STREAM], LineQuery(needle="\udcff"))
    assert [line.text for line in page.lines] == ["a \udcff b"]
