"""Log streams: stored exactly once, in order, under every name and with every text."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_lines import CREATED, NOW_MS, STREAM, FakeClock, lines, numbered, read_on, texts

from clary.base.errors import StoreError
from clary.contract.agent_protocol import LogBlock
from clary.control.store.errors import BadLogQuery, SequenceGap, StreamNotFound
from clary.control.store.log_files import log_index
from clary.control.store.log_files.log_index import LogIndex
from clary.control.store.log_files.log_records import MAX_MESSAGE_BYTES
from clary.control.store.log_files.logs import LogStore

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


async def test_lines_are_read_back_in_order_with_their_times(logs: LogStore) -> None:
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


async def test_a_repeated_batch_is_stored_once(logs: LogStore) -> None:
    assert await logs.append(STREAM, 0, lines("a", "b")) == 2
    assert await logs.append(STREAM, 0, lines("a", "b")) == 2
    assert await logs.append(STREAM, 1, lines("b", "c")) == 3
    assert await logs.append(STREAM, 0, []) == 3
    assert texts((await logs.get_events(STREAM)).events) == ["a", "b", "c"]
    assert await logs.next_sequence(STREAM) == 3


async def test_lines_of_one_block_become_separate_events(logs: LogStore) -> None:
    assert await logs.append(STREAM, 0, [LogBlock(at_ms=5, text="a\n\nc", rank=1), LogBlock(at_ms=6, text="d")]) == 4
    events = (await logs.get_events(STREAM)).events
    assert [(event.timestamp_ms, event.message, event.rank) for event in events] == [
        (5, "a", 1),
        (5, " ", 1),
        (5, "c", 1),
        (6, "d", None),
    ]


@pytest.mark.parametrize("num_stored", range(7))
async def test_a_partly_stored_block_adds_its_remaining_lines(logs: LogStore, num_stored: int) -> None:
    await logs.append(STREAM, 0, lines(*"abcdefg"[:num_stored]))
    blocks = [LogBlock(at_ms=2000, text="a\nb\nc"), LogBlock(at_ms=2001, text="d\ne"), LogBlock(at_ms=2002, text="f")]
    assert await logs.append(STREAM, 0, blocks) == 6
    assert texts((await logs.get_events(STREAM)).events) == list("abcdef")


@given(
    st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=30), max_size=8),
    st.integers(1, 9),
    st.integers(1, 900),
)
def test_a_run_of_records_is_indexed_like_single_records(
    runs: list[list[int]], num_records: int, num_bytes: int
) -> None:
    at_once, one_by_one = LogIndex(end=50), LogIndex(end=50)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_index, "BLOCK_RECORDS", num_records)
        patched.setattr(log_index, "BLOCK_BYTES", num_bytes)
        for at_ms, sizes in enumerate(runs):
            at_once.add_run(sizes, at_ms=at_ms, ingestion_ms=9)
            for size in sizes:
                one_by_one.add(offset=one_by_one.end, end=one_by_one.end + size, at_ms=at_ms, ingestion_ms=9)
    assert at_once == one_by_one


async def test_a_batch_after_a_gap_is_refused_and_not_stored(logs: LogStore) -> None:
    await logs.append(STREAM, 0, lines("a"))
    with pytest.raises(SequenceGap, match="expected line 1 next, got a batch that begins at 2") as gap:
        await logs.append(STREAM, 2, lines("c"))
    assert gap.value.next_sequence == 1
    with pytest.raises(StoreError, match="begin at 0, got -1"):
        await logs.append(STREAM, -1, lines("x", "y", "z"))
    assert texts((await logs.get_events(STREAM)).events) == ["a"]


async def test_concurrent_copies_of_a_batch_are_stored_once(logs: LogStore) -> None:
    for first in range(0, 100, 10):
        await asyncio.gather(*(logs.append(STREAM, first, numbered(10, first)) for _ in range(4)))
    assert (await read_on(logs, None))[0] == [str(number) for number in range(100)]


async def test_times_never_decrease_within_a_stream(logs: LogStore, clock: FakeClock) -> None:
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
async def test_any_text_is_read_back_unchanged(logs: LogStore, text: str) -> None:
    await logs.append(STREAM, 0, lines(text))
    assert texts((await logs.get_events(STREAM)).events) == [text]


async def test_an_overlong_line_is_cut_with_a_note(logs: LogStore) -> None:
    whole, overlong = "\u00e9" * (MAX_MESSAGE_BYTES // 2), "\u4e16" * MAX_MESSAGE_BYTES
    await logs.append(STREAM, 0, lines(whole, overlong, ""))
    kept, cut, empty = texts((await logs.get_events(STREAM)).events)
    assert kept == whole
    start, _, note = cut.partition(" ... [line cut by the log store: ")
    assert set(start) == {"\u4e16"}
    assert int(note.split()[0]) + len(start.encode()) == len(overlong.encode())
    assert len(cut.encode()) <= MAX_MESSAGE_BYTES
    assert empty == " "  # clients require at least one character


async def test_absurd_numbers_from_an_agent_are_clamped(logs: LogStore) -> None:
    await logs.append(
        STREAM, 0, [LogBlock(at_ms=10**30, text="a", rank=10**12), LogBlock(at_ms=-(10**30), text="b", rank=-5)]
    )
    events = (await logs.get_events(STREAM)).events
    assert [event.rank for event in events] == [None, None]
    datetime.fromtimestamp(events[0].timestamp_ms / 1000, UTC)  # clients can print this time


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


async def test_hostile_stream_names_give_separate_files_in_the_folder(tmp_path: Path) -> None:
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
