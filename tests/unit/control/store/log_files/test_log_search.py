"""Searches over log streams, lists of streams, and the deletion of streams."""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from log_lines import CREATED, NOW_MS, STREAM, lines, numbered, texts

from clary.base.errors import StoreError
from clary.contract.agent_protocol import LogBlock
from clary.control.store.errors import BadLogQuery, BadToken, StreamNotFound
from clary.control.store.log_files import log_pages
from clary.control.store.log_files import logs as log_store
from clary.control.store.log_files.log_pages import LogEvent
from clary.control.store.log_files.logs import LogStore, StreamOrder


async def test_events_of_all_streams_are_sorted_by_time_and_have_unique_ids(logs: LogStore) -> None:
    await logs.create_stream("job/algo-2", CREATED)
    await logs.append(STREAM, 0, lines("a1", "a2", "a3", at_ms=10, step_ms=10))
    await logs.append("job/algo-2", 0, lines("b1", "b2", "b3", at_ms=10, step_ms=15))
    page = await logs.filter_events(prefix="job/")
    assert [event.timestamp_ms for event in page.events] == [10, 10, 20, 25, 30, 40]
    assert page.next_token is None
    ids = [event.event_id for event in page.events]
    assert len(set(ids)) == 6
    assert all(event_id.isdigit() for event_id in ids)
    again = await logs.filter_events(["job/algo-2", STREAM, STREAM])
    assert again.events == page.events
    assert texts((await logs.filter_events([STREAM])).events) == ["a1", "a2", "a3"]
    assert (await logs.get_events(STREAM)).events[0] in page.events


async def test_a_search_of_a_named_stream_that_does_not_exist_is_refused(logs: LogStore) -> None:
    await logs.append(STREAM, 0, lines("a1", "a2", at_ms=10, step_ms=10))
    await logs.create_stream("job/silent", CREATED)
    assert (await logs.filter_events(["job/silent"])).events == ()
    with pytest.raises(StreamNotFound):
        await logs.filter_events([STREAM, "nobody"])
    assert (await logs.filter_events(prefix="nobody")).events == ()
    await logs.create_stream("other", CREATED)
    first = await logs.filter_events([STREAM, "other"], limit=1)
    await logs.delete_streams("other")
    second = await logs.filter_events([STREAM, "other"], limit=1, token=first.next_token)
    assert texts(second.events) == ["a2"], "a stream that is deleted meanwhile ends no search"


async def test_all_pages_of_a_search_equal_the_search_without_a_limit(
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
    for limit, searched, budget_s in (
        (1, 100_000, 60.0),
        (7, 100_000, 60.0),
        (10_000, 4, 60.0),
        (len(whole), 100_000, 60.0),
        (10_000, 100_000, 0.0),
    ):
        monkeypatch.setattr(log_pages, "MAX_SEARCHED", searched)
        monkeypatch.setattr(log_pages, "SEARCH_S", budget_s)
        found: list[LogEvent] = []
        token = None
        for _ in range(1000):
            page = await logs.filter_events(pattern="odd", start_ms=3, end_ms=17, limit=limit, token=token)
            found += page.events
            token = page.next_token
            if token is None:
                break
        assert tuple(found) == whole


async def test_a_search_finds_lines_that_arrived_after_its_last_page(logs: LogStore) -> None:
    """`aws logs tail --follow` queries again from the last time and recognises events by their ids."""
    await logs.append(STREAM, 0, lines("a", "b", at_ms=5, step_ms=0))
    first = (await logs.filter_events(start_ms=0)).events
    await logs.append(STREAM, 2, lines("c", at_ms=5))
    second = (await logs.filter_events(start_ms=first[-1].timestamp_ms)).events
    seen = {event.event_id for event in first}
    assert [event.message for event in second if event.event_id not in seen] == ["c"]


class SlowPattern:
    """A pattern that takes 20 ms for a line; it counts the lines, and the searches of each pattern that run at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_lines = 0
        self.running: list[str] = []
        self.together: set[tuple[str, ...]] = set()
        monkeypatch.setattr(log_store, "compile_pattern", self.compiled)

    def compiled(self, pattern: str | None) -> Callable[[str], bool]:
        def matches(_message: str) -> bool:
            self.num_lines += 1
            self.running.append(str(pattern))
            self.together.add(tuple(sorted(self.running)))
            time.sleep(0.02)
            self.running.remove(str(pattern))
            return True

        return matches


async def test_a_long_search_returns_what_it_has_found_and_goes_on_from_its_token(
    logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await logs.append(STREAM, 0, numbered(40))
    SlowPattern(monkeypatch)
    monkeypatch.setattr(log_pages, "SEARCH_S", 0.2)
    begin = time.monotonic()
    page = await logs.filter_events()
    assert time.monotonic() - begin < 0.7
    assert 1 <= len(page.events) < 40
    found = list(page.events)
    while page.next_token is not None:
        page = await logs.filter_events(token=page.next_token)
        found += page.events
    assert texts(found) == [str(number) for number in range(40)]


async def test_a_search_for_which_nobody_waits_ends(logs: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await logs.append(STREAM, 0, numbered(500))
    pattern = SlowPattern(monkeypatch)
    monkeypatch.setattr(log_pages, "SEARCH_S", 1000.0)
    monkeypatch.setattr(log_store, "CALL_TIMEOUT_S", 0.2)
    with pytest.raises(StoreError, match="no answer within"):
        await logs.filter_events()
    await asyncio.sleep(0.1)
    num_lines = pattern.num_lines
    assert num_lines < 100
    await asyncio.sleep(0.2)
    assert pattern.num_lines == num_lines


async def test_a_client_has_one_search_at_once(logs: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await logs.append(STREAM, 0, numbered(10))
    pattern = SlowPattern(monkeypatch)
    await asyncio.gather(
        *(logs.filter_events(pattern="job", client="job") for _ in range(3)), logs.filter_events(pattern="owner")
    )
    assert pattern.num_lines == 40
    assert ("job", "owner") in pattern.together
    assert not any(together.count("job") > 1 for together in pattern.together)


async def test_invalid_searches_are_refused(logs: LogStore) -> None:
    await logs.append(STREAM, 0, numbered(3))
    token = (await logs.filter_events(limit=1)).next_token
    with pytest.raises(BadLogQuery, match="not both"):
        await logs.filter_events([STREAM], prefix="job")
    with pytest.raises(BadLogQuery, match="JSON patterns"):
        await logs.filter_events(pattern="{ $.a = 1 }")
    with pytest.raises(BadToken):
        await logs.filter_events(pattern="1", limit=1, token=token)
    assert texts((await logs.filter_events(limit=1, token=token)).events) == ["1"]


async def test_the_summary_of_a_stream_describes_its_events(logs: LogStore, tmp_path: Path) -> None:
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


async def test_streams_are_listed_in_either_order_with_a_token_only_if_more_follow(logs: LogStore) -> None:
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
    assert exact.next_token is None  # the SDK loops forever on a token that leads to no further page
    more = await logs.list_streams("job2/", limit=3)
    with pytest.raises(BadToken):
        await logs.list_streams("job", limit=3, token=more.next_token)
    assert (await logs.list_streams("nothing")).streams == ()
    with pytest.raises(BadLogQuery, match="1 to 50, got 51"):
        await logs.list_streams(limit=51)


async def test_a_deletion_removes_the_streams_of_one_job_only(logs: LogStore, tmp_path: Path) -> None:
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
