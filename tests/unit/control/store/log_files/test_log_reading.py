"""Pages of a log stream, by CloudWatch's rules for tokens, times and limits."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_lines import CREATED, STREAM, lines, numbered, read_on, texts

from clary.contract.agent_protocol import LogBlock
from clary.control.store.errors import BadLogQuery, BadToken
from clary.control.store.log_files import log_index, log_pages
from clary.control.store.log_files.log_pages import EventPage
from clary.control.store.log_files.logs import LogStore


async def test_a_token_is_stable_without_new_lines_and_later_returns_the_new_lines(logs: LogStore) -> None:
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


async def test_lines_are_stored_while_slow_searches_run(logs: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    search = log_pages.search

    def slow_search(*args: Any, **options: Any) -> Any:
        goes_on.wait(20)
        return search(*args, **options)

    monkeypatch.setattr(log_pages, "search", slow_search)
    searches = [asyncio.create_task(logs.filter_events([STREAM])) for _ in range(20)]
    await asyncio.sleep(0.05)
    try:
        assert await asyncio.wait_for(logs.append(STREAM, 0, lines("a")), 5) == 1
        assert texts((await asyncio.wait_for(logs.get_events(STREAM), 5)).events) == ["a"]
    finally:
        goes_on.set()
        await asyncio.gather(*searches)


async def test_start_is_inclusive_and_end_is_exclusive(logs: LogStore) -> None:
    await logs.append(STREAM, 0, lines(*"abcde", step_ms=10))
    page = await logs.get_events(STREAM, start_ms=1010, end_ms=1030)
    assert texts(page.events) == ["b", "c"]
    assert texts((await logs.get_events(STREAM, start_ms=1011)).events) == ["c", "d", "e"]
    assert texts((await logs.get_events(STREAM, end_ms=1000)).events) == []
    assert texts((await logs.get_events(STREAM, start_ms=9999)).events) == []


async def test_sdk_v2_resumes_by_time_and_skips_the_lines_that_it_has_of_that_millisecond(
    logs: LogStore, short_blocks: None
) -> None:
    await logs.append(STREAM, 0, [LogBlock(at_ms=7, text=str(number)) for number in range(10)])
    seen = (await read_on(logs, None))[0]
    await logs.append(STREAM, 10, [LogBlock(at_ms=7, text="10"), LogBlock(at_ms=8, text="11")])
    found, _token = await read_on(logs, None, start_ms=7, limit=4)
    assert found[: len(seen)] == seen
    assert found[len(seen) :] == ["10", "11"]


async def test_without_a_token_the_newest_page_is_returned_and_leads_back(logs: LogStore, short_blocks: None) -> None:
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
async def test_pages_by_tokens_equal_slices_of_all_lines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Compare the pages of a real log with slices of a list."""
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
    assert (
        len((await logs.get_events(STREAM, token=page.next_forward_token)).events) == 1
    )  # a page has at least one line


@pytest.mark.parametrize("limit", [0, -1, 10_001])
async def test_a_limit_out_of_range_is_refused(logs: LogStore, limit: int) -> None:
    with pytest.raises(BadLogQuery, match=f"1 to 10000, got {limit}"):
        await logs.get_events(STREAM, limit=limit)
    with pytest.raises(BadLogQuery, match=f"1 to 10000, got {limit}"):
        await logs.filter_events(limit=limit)


async def test_tokens_of_other_streams_and_forged_tokens_are_refused(logs: LogStore) -> None:
    await logs.create_stream("other", CREATED)
    await logs.append(STREAM, 0, lines("a"))
    token = (await logs.get_events(STREAM)).next_forward_token
    beyond = token[:2] + f"{99:020d}" + token[22:]
    for stream, bad in (("other", token), (STREAM, beyond), (STREAM, ""), (STREAM, "f/1/s"), (STREAM, token + "x")):
        with pytest.raises(BadToken, match="was not given out for log stream"):
            await logs.get_events(stream, token=bad)
