"""Log streams: stored exactly once, read by CloudWatch's rules, kept over crashes."""

import asyncio
import os
import random
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clary.contract.agent_protocol import LogBlock
from clary.contract.errors import StoreError
from clary.control.store import log_index, log_pages, stream_registry
from clary.control.store.errors import BadLogQuery, BadToken, SequenceGap, StreamDamaged, StreamNotFound
from clary.control.store.log_index import LogIndex
from clary.control.store.log_pages import EventPage, LogEvent
from clary.control.store.log_records import MAX_MESSAGE_BYTES
from clary.control.store.logs import LogStore, StreamOrder

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
STREAM = "job/algo-1-1767225600"


class FakeClock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def logs(tmp_path: Path, clock: FakeClock) -> AsyncIterator[LogStore]:
    logs = LogStore(tmp_path / "logs", clock=clock)
    await logs.create_stream(STREAM, CREATED)
    yield logs
    await logs.close()


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three lines, so that a few lines make many blocks."""
    monkeypatch.setattr(log_index, "BLOCK_RECORDS", 3)


def lines(*texts: str, at_ms: int = 1000, step_ms: int = 1) -> list[LogBlock]:
    return [LogBlock(at_ms=at_ms + number * step_ms, text=text) for number, text in enumerate(texts)]


def numbered(count: int, first: int = 0) -> list[LogBlock]:
    return [LogBlock(at_ms=1000 + number, text=str(number)) for number in range(first, first + count)]


def texts(events: tuple[LogEvent, ...]) -> list[str]:
    return [event.message for event in events]


async def read_on(logs: LogStore, token: str | None, **query: int) -> tuple[list[str], str]:
    """Read forward as clients do, until a page gives back the token that it was asked with."""
    found: list[str] = []
    for _ in range(10_000):
        page = await logs.get_events(STREAM, from_head=True, token=token, **query)
        found += texts(page.events)
        if page.next_forward_token == token:
            assert page.events == ()
            return found, page.next_forward_token
        token = page.next_forward_token
    raise AssertionError("paging does not end")


# Appending


async def test_lines_come_back_in_order_with_their_times(logs: LogStore) -> None:
    assert await logs.append(STREAM, 0, [LogBlock(at_ms=5, text="a", rank=3), LogBlock(at_ms=5, text="b")]) == 2
    first, second = (await logs.get_events(STREAM)).events
    assert (first.timestamp_ms, first.ingestion_ms, first.message, first.rank, first.stream) == (
        5,
        NOW_MS,
        "a",
        3,
        STREAM,
    )
    assert (second.message, second.rank) == ("b", None)


async def test_a_batch_sent_again_is_stored_once(logs: LogStore) -> None:
    assert await logs.append(STREAM, 0, lines("a", "b")) == 2
    assert await logs.append(STREAM, 0, lines("a", "b")) == 2
    assert await logs.append(STREAM, 1, lines("b", "c")) == 3
    assert await logs.append(STREAM, 0, []) == 3
    assert texts((await logs.get_events(STREAM)).events) == ["a", "b", "c"]
    assert await logs.next_sequence(STREAM) == 3


async def test_lines_that_come_in_one_block_are_events_of_their_own(logs: LogStore) -> None:
    assert await logs.append(STREAM, 0, [LogBlock(at_ms=5, text="a\n\nc", rank=1), LogBlock(at_ms=6, text="d")]) == 4
    events = (await logs.get_events(STREAM)).events
    assert [(event.timestamp_ms, event.message, event.rank) for event in events] == [
        (5, "a", 1),
        (5, " ", 1),
        (5, "c", 1),
        (6, "d", None),
    ]


@pytest.mark.parametrize("num_stored", range(7))
async def test_a_block_of_which_a_part_is_stored_adds_the_rest(logs: LogStore, num_stored: int) -> None:
    await logs.append(STREAM, 0, lines(*"abcdefg"[:num_stored]))
    blocks = [LogBlock(at_ms=2000, text="a\nb\nc"), LogBlock(at_ms=2001, text="d\ne"), LogBlock(at_ms=2002, text="f")]
    assert await logs.append(STREAM, 0, blocks) == 6
    assert texts((await logs.get_events(STREAM)).events) == list("abcdef")


@given(
    st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=30), max_size=8),
    st.integers(1, 9),
    st.integers(1, 900),
)
def test_a_run_of_records_is_indexed_as_one_by_one(runs: list[list[int]], num_records: int, num_bytes: int) -> None:
    at_once, one_by_one = LogIndex(end=50), LogIndex(end=50)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_index, "BLOCK_RECORDS", num_records)
        patched.setattr(log_index, "BLOCK_BYTES", num_bytes)
        for at_ms, sizes in enumerate(runs):
            at_once.add_run(sizes, at_ms=at_ms, ingestion_ms=9)
            for size in sizes:
                one_by_one.add(offset=one_by_one.end, end=one_by_one.end + size, at_ms=at_ms, ingestion_ms=9)
    assert at_once == one_by_one


async def test_a_gap_is_refused_and_stores_nothing(logs: LogStore) -> None:
    await logs.append(STREAM, 0, lines("a"))
    with pytest.raises(SequenceGap, match="expected line 1 next, got a batch that begins at 2") as gap:
        await logs.append(STREAM, 2, lines("c"))
    assert gap.value.next_sequence == 1
    with pytest.raises(StoreError, match="begin at 0, got -1"):
        await logs.append(STREAM, -1, lines("x", "y", "z"))
    assert texts((await logs.get_events(STREAM)).events) == ["a"]


async def test_batches_that_arrive_twice_at_once_are_stored_once(logs: LogStore) -> None:
    for first in range(0, 100, 10):
        await asyncio.gather(*(logs.append(STREAM, first, numbered(10, first)) for _ in range(4)))
    assert (await read_on(logs, None))[0] == [str(number) for number in range(100)]


async def test_times_never_go_back_within_a_stream(logs: LogStore, clock: FakeClock) -> None:
    await logs.append(STREAM, 0, [LogBlock(at_ms=at_ms, text="x") for at_ms in (10, 5, -3, 12, 11)])
    clock.time -= timedelta(hours=1)
    await logs.append(STREAM, 5, lines("y", at_ms=1))
    events = (await logs.get_events(STREAM)).events
    assert [event.timestamp_ms for event in events] == [10, 10, 10, 12, 12, 12]
    assert {event.ingestion_ms for event in events} == {NOW_MS}


@pytest.mark.parametrize(
    "text",
    ["\u00e9\u4e16\U0001f600", "\ud800 half a pair", "nul \0 and \r and \u2028", " ", "x" * 10_000, '{"json": [1]}'],
)
async def test_any_text_comes_back_as_it_was(logs: LogStore, text: str) -> None:
    await logs.append(STREAM, 0, lines(text))
    assert texts((await logs.get_events(STREAM)).events) == [text]


async def test_an_overlong_line_is_cut_and_says_so(logs: LogStore) -> None:
    whole, overlong = "\u00e9" * (MAX_MESSAGE_BYTES // 2), "\u4e16" * MAX_MESSAGE_BYTES
    await logs.append(STREAM, 0, lines(whole, overlong, ""))
    kept, cut, empty = texts((await logs.get_events(STREAM)).events)
    assert kept == whole
    start, _, note = cut.partition(" ... [line cut by the log store: ")
    assert set(start) == {"\u4e16"}
    assert int(note.split()[0]) + len(start.encode()) == len(overlong.encode())
    assert len(cut.encode()) <= MAX_MESSAGE_BYTES
    assert empty == " "  # clients require at least one character


async def test_absurd_numbers_from_an_agent_are_tamed(logs: LogStore) -> None:
    await logs.append(
        STREAM, 0, [LogBlock(at_ms=10**30, text="a", rank=10**12), LogBlock(at_ms=-(10**30), text="b", rank=-5)]
    )
    events = (await logs.get_events(STREAM)).events
    assert [event.rank for event in events] == [None, None]
    datetime.fromtimestamp(events[0].timestamp_ms / 1000, UTC)  # a time that clients can print


async def test_unknown_streams_are_refused_by_name(logs: LogStore) -> None:
    for act in (
        logs.append("nobody", 0, lines("a")),
        logs.get_events("nobody"),
        logs.seal("nobody"),
        logs.next_sequence("nobody"),
    ):
        with pytest.raises(StreamNotFound, match="'nobody'"):
            await act


async def test_creating_a_stream_again_keeps_its_lines(logs: LogStore) -> None:
    await logs.append(STREAM, 0, lines("a"))
    await logs.create_stream(STREAM, CREATED + timedelta(hours=1))
    assert texts((await logs.get_events(STREAM)).events) == ["a"]
    assert (await logs.list_streams()).streams[0].created_at_ms == int(CREATED.timestamp() * 1000)


HOSTILE_NAMES = [
    "../../etc/passwd",
    "..",
    ".",
    "/",
    "a/b",
    "a%2Fb",
    "~",
    "~" + "0" * 64,
    ".lock",
    "a.log",
    "a.idx",
    "nul\0name",
    "line\nbreak",
    "\ud800",
    "A",
    "a",
    "\u4e16" * 512,
    "\u4e16" * 511 + "x",
    " ",
]


async def test_hostile_names_stay_in_the_folder_and_apart(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "logs"
    logs = LogStore(folder)
    for name in HOSTILE_NAMES:
        await logs.create_stream(name, CREATED)
        await logs.append(name, 0, lines(f"of {name}"))
    await logs.close()
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["logs"]
    logs = LogStore(folder)
    try:
        assert [stream.name for stream in (await logs.list_streams()).streams] == sorted(HOSTILE_NAMES)
        for name in HOSTILE_NAMES:
            assert texts((await logs.get_events(name)).events) == f"of {name}".split("\n")
    finally:
        await logs.close()


@pytest.mark.parametrize("name", ["", "x" * 513])
async def test_names_of_impossible_length_are_refused(logs: LogStore, name: str) -> None:
    with pytest.raises(BadLogQuery, match=f"1 to 512 characters, got {len(name)}"):
        await logs.create_stream(name, CREATED)


# GetLogEvents


async def test_a_token_with_nothing_new_comes_back_and_later_yields_what_is_new(logs: LogStore) -> None:
    empty = await logs.get_events(STREAM, from_head=True)
    assert empty.events == ()
    assert (await logs.get_events(STREAM, token=empty.next_forward_token)) == empty
    await logs.append(STREAM, 0, lines("a", "b"))
    page = await logs.get_events(STREAM, token=empty.next_forward_token)
    assert texts(page.events) == ["a", "b"]
    again = await logs.get_events(STREAM, token=page.next_forward_token)
    assert (again.events, again.next_forward_token) == ((), page.next_forward_token)
    await logs.append(STREAM, 2, lines("c"))
    assert texts((await logs.get_events(STREAM, token=page.next_forward_token)).events) == ["c"]


async def test_start_is_inclusive_and_end_is_exclusive(logs: LogStore) -> None:
    await logs.append(STREAM, 0, lines(*"abcde", step_ms=10))
    page = await logs.get_events(STREAM, start_ms=1010, end_ms=1030)
    assert texts(page.events) == ["b", "c"]
    assert texts((await logs.get_events(STREAM, start_ms=1011)).events) == ["c", "d", "e"]
    assert texts((await logs.get_events(STREAM, end_ms=1000)).events) == []
    assert texts((await logs.get_events(STREAM, start_ms=9999)).events) == []


async def test_sdk_v2_resumes_by_time_and_skips_what_it_has_of_that_millisecond(
    logs: LogStore, short_blocks: None
) -> None:
    await logs.append(STREAM, 0, [LogBlock(at_ms=7, text=str(number)) for number in range(10)])
    seen = (await read_on(logs, None))[0]
    await logs.append(STREAM, 10, [LogBlock(at_ms=7, text="10"), LogBlock(at_ms=8, text="11")])
    found, _token = await read_on(logs, None, start_ms=7, limit=4)
    assert found[: len(seen)] == seen
    assert found[len(seen) :] == ["10", "11"]


async def test_without_a_token_the_newest_page_comes_first_and_leads_back(logs: LogStore, short_blocks: None) -> None:
    await logs.append(STREAM, 0, numbered(10))
    page = await logs.get_events(STREAM, limit=4)
    assert texts(page.events) == ["6", "7", "8", "9"]
    back = await logs.get_events(STREAM, limit=4, token=page.next_backward_token)
    assert texts(back.events) == ["2", "3", "4", "5"]
    first = await logs.get_events(STREAM, limit=4, token=back.next_backward_token)
    assert texts(first.events) == ["0", "1"]
    end = await logs.get_events(STREAM, limit=4, token=first.next_backward_token)
    assert (end.events, end.next_backward_token) == ((), first.next_backward_token)
    assert texts((await logs.get_events(STREAM, limit=4, token=end.next_forward_token)).events) == ["0", "1", "2", "3"]
    assert texts((await logs.get_events(STREAM, token=page.next_forward_token)).events) == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_any_walk_by_tokens_shows_the_lines_around_its_place(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The pages of a real log against slices of a list."""
    times = sorted(data.draw(st.lists(st.integers(0, 30), max_size=40)))
    start = data.draw(st.none() | st.integers(0, 32))
    end = data.draw(st.none() | st.integers(0, 32))
    in_range = [
        number
        for number, at_ms in enumerate(times)
        if (start is None or at_ms >= start) and (end is None or at_ms < end)
    ]
    logs = LogStore(tmp_path_factory.mktemp("walk"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_index, "BLOCK_RECORDS", data.draw(st.integers(1, 5)))
        try:
            await logs.create_stream(STREAM, CREATED)
            await logs.append(STREAM, 0, [LogBlock(at_ms=at, text=str(number)) for number, at in enumerate(times)])
            page: EventPage | None = None
            for _ in range(data.draw(st.integers(1, 6))):
                limit = data.draw(st.integers(1, 7))
                way = data.draw(st.sampled_from("fb"))
                if page is None:
                    page = await logs.get_events(STREAM, start_ms=start, end_ms=end, from_head=way == "f", limit=limit)
                    expected = in_range[:limit] if way == "f" else in_range[-limit:]
                else:
                    token = page.next_forward_token if way == "f" else page.next_backward_token
                    place = int(token.split("/")[1][:20])
                    page = await logs.get_events(STREAM, start_ms=start, end_ms=end, token=token, limit=limit)
                    ahead = [number for number in in_range if number >= place][:limit]
                    behind = [number for number in in_range if number < place][-limit:]
                    expected = ahead if way == "f" else behind
                    if not expected:
                        assert token == (page.next_forward_token if way == "f" else page.next_backward_token)
                assert [int(event.message) for event in page.events] == expected
        finally:
            await logs.close()


async def test_a_page_ends_at_its_limit_of_events_and_bytes(logs: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    large = "x" * 100_000
    await logs.append(STREAM, 0, [LogBlock(at_ms=1, text=large) for _ in range(25)])
    page = await logs.get_events(STREAM, from_head=True)
    assert len(page.events) == 10
    assert len((await read_on(logs, None))[0]) == 25
    assert len((await logs.get_events(STREAM)).events) == 10
    monkeypatch.setattr(log_pages, "MAX_PAGE_BYTES", 10)
    assert len((await logs.get_events(STREAM, token=page.next_forward_token)).events) == 1  # a page is never stuck


@pytest.mark.parametrize("limit", [0, -1, 10_001])
async def test_a_limit_out_of_range_is_refused(logs: LogStore, limit: int) -> None:
    with pytest.raises(BadLogQuery, match=f"1 to 10000, got {limit}"):
        await logs.get_events(STREAM, limit=limit)
    with pytest.raises(BadLogQuery, match=f"1 to 10000, got {limit}"):
        await logs.filter_events(limit=limit)


async def test_tokens_of_other_streams_and_invented_ones_are_refused(logs: LogStore) -> None:
    await logs.create_stream("other", CREATED)
    await logs.append(STREAM, 0, lines("a"))
    token = (await logs.get_events(STREAM)).next_forward_token
    beyond = token[:2] + f"{99:020d}" + token[22:]
    for stream, bad in (("other", token), (STREAM, beyond), (STREAM, ""), (STREAM, "f/1/s"), (STREAM, token + "x")):
        with pytest.raises(BadToken, match="was not given out for log stream"):
            await logs.get_events(stream, token=bad)


# FilterLogEvents


async def test_events_of_all_streams_come_by_time_with_ids_of_their_own(logs: LogStore) -> None:
    await logs.create_stream("job/algo-2", CREATED)
    await logs.append(STREAM, 0, lines("a1", "a2", "a3", at_ms=10, step_ms=10))
    await logs.append("job/algo-2", 0, lines("b1", "b2", "b3", at_ms=10, step_ms=15))
    page = await logs.filter_events(prefix="job/")
    assert [event.timestamp_ms for event in page.events] == [10, 10, 20, 25, 30, 40]
    assert page.next_token is None
    ids = [event.event_id for event in page.events]
    assert len(set(ids)) == 6
    assert all(event_id.isdigit() for event_id in ids)
    again = await logs.filter_events(["job/algo-2", STREAM, STREAM, "nobody"])
    assert again.events == page.events
    assert texts((await logs.filter_events([STREAM])).events) == ["a1", "a2", "a3"]
    assert (await logs.get_events(STREAM)).events[0] in page.events


async def test_pages_of_a_search_together_are_the_whole_search(
    logs: LogStore, short_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    randomly = random.Random(7)
    for number in range(5):
        stream = f"s{number}"
        await logs.create_stream(stream, CREATED)
        times = sorted(randomly.randrange(20) for _ in range(30))
        await logs.append(
            stream,
            0,
            [LogBlock(at_ms=at, text=f"{stream} {'odd' if i % 2 else 'even'} {i}") for i, at in enumerate(times)],
        )
    whole = (await logs.filter_events(pattern="odd", start_ms=3, end_ms=17)).events
    assert len(whole) > 20
    keys = [(event.timestamp_ms, event.stream, int(event.message.split()[-1])) for event in whole]
    assert keys == sorted(keys)
    for limit, searched in ((1, 100_000), (7, 100_000), (10_000, 4), (len(whole), 100_000)):
        monkeypatch.setattr(log_pages, "MAX_SEARCHED", searched)
        found: list[LogEvent] = []
        token = None
        for _ in range(1000):
            page = await logs.filter_events(pattern="odd", start_ms=3, end_ms=17, limit=limit, token=token)
            found += page.events
            token = page.next_token
            if token is None:
                break
        assert tuple(found) == whole


async def test_a_search_sees_lines_that_came_after_its_last_page(logs: LogStore) -> None:
    """`aws logs tail --follow` asks again from the last time and knows events by their ids."""
    await logs.append(STREAM, 0, lines("a", "b", at_ms=5, step_ms=0))
    first = (await logs.filter_events(start_ms=0)).events
    await logs.append(STREAM, 2, lines("c", at_ms=5))
    second = (await logs.filter_events(start_ms=first[-1].timestamp_ms)).events
    seen = {event.event_id for event in first}
    assert [event.message for event in second if event.event_id not in seen] == ["c"]


async def test_searches_that_make_no_sense_are_refused(logs: LogStore) -> None:
    await logs.append(STREAM, 0, numbered(3))
    token = (await logs.filter_events(limit=1)).next_token
    with pytest.raises(BadLogQuery, match="not both"):
        await logs.filter_events([STREAM], prefix="job")
    with pytest.raises(BadLogQuery, match="JSON patterns"):
        await logs.filter_events(pattern="{ $.a = 1 }")
    with pytest.raises(BadToken):
        await logs.filter_events(pattern="1", limit=1, token=token)
    assert texts((await logs.filter_events(limit=1, token=token)).events) == ["1"]


# DescribeLogStreams


async def test_a_stream_is_described_by_its_events(logs: LogStore, tmp_path: Path) -> None:
    (summary,) = (await logs.list_streams()).streams
    assert (summary.first_event_ms, summary.last_event_ms, summary.last_ingestion_ms, summary.stored_bytes) == (
        None,
        None,
        None,
        0,
    )
    await logs.append(STREAM, 0, lines("a", "b", "c"))
    (summary,) = (await logs.list_streams()).streams
    assert (summary.first_event_ms, summary.last_event_ms, summary.last_ingestion_ms) == (1000, 1002, NOW_MS)
    assert (summary.name, summary.created_at_ms, summary.next_sequence) == (
        STREAM,
        int(CREATED.timestamp() * 1000),
        3,
    )
    assert summary.stored_bytes > 3


async def test_streams_are_listed_in_either_order_and_a_token_means_that_more_follow(logs: LogStore) -> None:
    for number, name in enumerate(["job2/c", "job2/a", "job2/b"]):
        await logs.create_stream(name, CREATED)
        await logs.append(name, 0, lines("x", at_ms=100 - number))
    await logs.create_stream("job2/empty", CREATED)

    async def names(**query: object) -> list[str]:
        found: list[str] = []
        token = None
        while True:
            page = await logs.list_streams("job2/", limit=2, token=token, **query)  # type: ignore[arg-type]
            found += [stream.name for stream in page.streams]
            token = page.next_token
            if token is None:
                return found

    by_name = ["job2/a", "job2/b", "job2/c", "job2/empty"]
    assert await names() == by_name
    assert await names(descending=True) == by_name[::-1]
    by_time = ["job2/empty", "job2/b", "job2/a", "job2/c"]
    assert await names(order_by=StreamOrder.LAST_EVENT) == by_time
    assert await names(order_by=StreamOrder.LAST_EVENT, descending=True) == by_time[::-1]
    exact = await logs.list_streams("job2/", limit=4)
    assert exact.next_token is None  # the SDK loops for ever on a token that leads nowhere
    more = await logs.list_streams("job2/", limit=3)
    with pytest.raises(BadToken):
        await logs.list_streams("job", limit=3, token=more.next_token)
    assert (await logs.list_streams("nothing")).streams == ()
    with pytest.raises(BadLogQuery, match="1 to 50, got 51"):
        await logs.list_streams(limit=51)


async def test_deleting_takes_the_streams_of_one_job_alone(logs: LogStore, tmp_path: Path) -> None:
    for name in ("job/algo-2", "job2/algo-1"):
        await logs.create_stream(name, CREATED)
    await logs.append(STREAM, 0, lines("old"))
    await logs.seal(STREAM)
    assert await logs.delete_streams("job/") == 2
    assert await logs.delete_streams("job/") == 0
    assert [stream.name for stream in (await logs.list_streams()).streams] == ["job2/algo-1"]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {".lock", "job2%2Falgo-1.log"}
    with pytest.raises(StoreError, match="give a prefix"):
        await logs.delete_streams("")
    await logs.create_stream(STREAM, CREATED)
    assert (await logs.get_events(STREAM)).events == ()
    assert await logs.append(STREAM, 0, lines("new")) == 1


# Restarts, crashes, disks


async def test_everything_is_there_after_a_restart(logs: LogStore, tmp_path: Path, short_blocks: None) -> None:
    await logs.append(STREAM, 0, numbered(10))
    before = await logs.get_events(STREAM)
    summary = await logs.list_streams()
    await logs.close()
    await logs.close()
    with pytest.raises(StoreError, match="is closed"):
        await logs.append(STREAM, 10, numbered(1, 10))
    again = LogStore(tmp_path / "logs")
    try:
        assert await again.get_events(STREAM) == before
        assert await again.list_streams() == summary
        assert await again.append(STREAM, 8, numbered(5, 8)) == 13
        assert (await read_on(again, None, limit=2))[0] == [str(number) for number in range(13)]
    finally:
        await again.close()


@pytest.mark.parametrize("with_index", [False, True])
async def test_a_torn_last_record_is_cut_off_wherever_it_was_torn(tmp_path: Path, with_index: bool) -> None:
    folder = tmp_path / "logs"
    logs = LogStore(folder)
    await logs.create_stream(STREAM, CREATED)
    await logs.append(STREAM, 0, lines("first"))
    await logs.close()
    (path,) = folder.glob("*.log")
    (index_path,) = folder.glob("*.idx")
    index = index_path.read_bytes()
    intact = path.read_bytes()
    logs = LogStore(folder)
    await logs.append(STREAM, 1, lines("second \u4e16"))
    await logs.close()
    whole = path.read_bytes()
    for size in range(len(intact), len(whole)):
        for tail in (b"", b"\0" * (len(whole) - size), b"\0" * 5000):
            path.write_bytes(whole[:size] + tail)
            if tail and whole[:size] + tail == whole:
                continue
            index_path.write_bytes(index) if with_index else index_path.unlink(missing_ok=True)
            logs = LogStore(folder)
            assert await logs.next_sequence(STREAM) == 1
            assert path.read_bytes() == intact
            assert await logs.append(STREAM, 1, lines("again")) == 2
            assert texts((await logs.get_events(STREAM)).events) == ["first", "again"]
            await logs.close()


async def test_damage_in_the_middle_is_reported_and_harms_no_other_stream(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    logs = LogStore(folder)
    for name in ("bad", "good"):
        await logs.create_stream(name, CREATED)
        await logs.append(name, 0, lines("one", "two", "three"))
    await logs.close()
    path, index_path = folder / "bad.log", folder / "bad.idx"
    path.write_bytes(path.read_bytes().replace(b"two", b"twX"))
    for index_is_there in (True, False):
        if not index_is_there:
            index_path.unlink()
        logs = LogStore(folder)
        try:
            with pytest.raises(
                StreamDamaged, match=r"bad\.log is damaged: the record at offset \d+ fails its checksum"
            ):
                await logs.get_events("bad")
            assert texts((await logs.get_events("good")).events) == ["one", "two", "three"]
            assert "good" in [stream.name for stream in (await logs.list_streams()).streams]
        finally:
            await logs.close()
    logs = LogStore(folder)
    try:
        assert texts((await logs.filter_events()).events) == ["one", "two", "three"]
    finally:
        await logs.close()


@pytest.mark.parametrize("garbage", [b"", b"{}", b'{"magic": "CLARYINDEX1"}\n', b"\xff" * 100])
async def test_a_bad_index_is_not_used(tmp_path: Path, garbage: bytes) -> None:
    folder = tmp_path / "logs"
    logs = LogStore(folder)
    await logs.create_stream(STREAM, CREATED)
    await logs.append(STREAM, 0, numbered(5))
    await logs.close()
    (index_path,) = folder.glob("*.idx")
    index_path.write_bytes(garbage)
    (folder / "leftover.tmp").write_bytes(b"x")
    logs = LogStore(folder)
    try:
        assert (await read_on(logs, None))[0] == list("01234")
        assert not (folder / "leftover.tmp").exists()
    finally:
        await logs.close()


async def test_an_index_ahead_of_its_file_is_not_used(tmp_path: Path) -> None:
    """A power cut can lose lines that were never sealed, and keep the index that counted them."""
    folder = tmp_path / "logs"
    logs = LogStore(folder)
    await logs.create_stream(STREAM, CREATED)
    await logs.append(STREAM, 0, numbered(2))
    (path,) = folder.glob("*.log")
    short = path.read_bytes()
    await logs.append(STREAM, 2, numbered(3, 2))
    await logs.close()
    path.write_bytes(short)
    logs = LogStore(folder)
    try:
        assert await logs.next_sequence(STREAM) == 2
    finally:
        await logs.close()


async def test_a_full_disk_refuses_the_batch_whole(
    logs: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await logs.append(STREAM, 0, lines("a"))
    (path,) = (tmp_path / "logs").glob("*.log")
    before = path.read_bytes()
    real = os.pwrite

    def half_then_full(file: int, data: bytes, offset: int) -> int:
        if offset > len(before):
            raise OSError(28, "No space left on device")
        return real(file, bytes(data[:10]), offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half_then_full)
        with pytest.raises(StoreError, match="No space left on device") as full:
            await logs.append(STREAM, 1, lines("b", "c"))
    assert full.value.retryable
    assert path.read_bytes() == before
    assert await logs.append(STREAM, 1, lines("b", "c")) == 3
    assert texts((await logs.get_events(STREAM)).events) == ["a", "b", "c"]


async def test_a_folder_belongs_to_one_store_at_a_time(logs: LogStore, tmp_path: Path) -> None:
    other = LogStore(tmp_path / "logs")
    with pytest.raises(StoreError, match="in use by another process"):
        await other.open()
    await logs.close()
    await other.open()
    assert await other.next_sequence(STREAM) == 0
    await other.close()


async def test_a_folder_that_cannot_be_made_is_an_error_in_words() -> None:
    logs = LogStore("/proc/nothing/here")
    with pytest.raises(StoreError, match="cannot use the log folder /proc/nothing/here"):
        await logs.open()
    await logs.close()


async def test_more_streams_than_open_files_all_keep_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_blocks: None
) -> None:
    monkeypatch.setattr(stream_registry, "MAX_OPEN_FILES", 3)
    logs = LogStore(tmp_path / "logs")
    try:
        names = [f"s{number}" for number in range(12)]
        await asyncio.gather(*(logs.create_stream(name, CREATED) for name in names))
        for first in range(0, 20, 5):
            await asyncio.gather(*(logs.append(name, first, numbered(5, first)) for name in names))
        num_open = sum(
            os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path))
            for fd in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{fd}")
        )
        assert num_open <= 3 + 1  # and the lock
        assert len((await logs.filter_events(prefix="s")).events) == 12 * 20
        assert {stream.next_sequence for stream in (await logs.list_streams()).streams} == {20}
    finally:
        await logs.close()


async def test_reading_while_lines_arrive_shows_each_once(logs: LogStore, short_blocks: None) -> None:
    async def write() -> None:
        for first in range(0, 600, 7):
            await logs.append(STREAM, first, numbered(7, first))

    writer = asyncio.create_task(write())
    found: list[str] = []
    token = None
    while not writer.done():
        page = await logs.get_events(STREAM, from_head=True, token=token, limit=5)
        found += texts(page.events)
        token = page.next_forward_token
    await writer
    found += (await read_on(logs, token))[0]
    assert found == [str(number) for number in range(602)]


async def test_sealed_lines_are_forced_to_disk(logs: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (forced.append(os.readlink(f"/proc/self/fd/{file}")), real(file)))
    await logs.append(STREAM, 0, lines("a"))
    assert forced == []
    await logs.seal(STREAM)
    (path,) = (tmp_path / "logs").glob("*.log")
    assert forced == [str(path), str(path.parent)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
