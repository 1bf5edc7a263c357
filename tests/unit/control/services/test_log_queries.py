"""Queries over training logs: their lifetime, their errors, their limits, and a job's access to them."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from clary.base.errors import WireError
from clary.contract.agent_protocol import LogBlock
from clary.control.permissions import api_rules
from clary.control.permissions.grants import Grants
from clary.control.services import query_desk
from clary.control.services.call import Call
from clary.control.services.dispatch import dispatch
from clary.control.store.log_files.logs import LogStore
from clary.testing.control_plane import ControlPlane

GROUP = "/aws/sagemaker/TrainingJobs"
BEGIN_S = 1_767_268_800
RANGE = {"logGroupName": GROUP, "startTime": BEGIN_S, "endTime": BEGIN_S + 3600}
NEWEST = "fields @message | sort @timestamp desc"


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await store(plane, "mine/algo-1", "one", "two", "three")
        await store(plane, "mine-too/algo-1", "four")
        await store(plane, "theirs/algo-1", "five", "six")
        yield plane


async def store(plane, stream, *texts, first_ms=0):
    await plane.logs.create_stream(stream, plane.clock.now())
    blocks = [LogBlock(at_ms=BEGIN_S * 1000 + first_ms + index * 1000, text=text) for index, text in enumerate(texts)]
    await plane.logs.append(stream, 0, blocks)


def grants(job):
    return Grants(job_name=job, job_arn=f"arn:aws:sagemaker:us-west-2:0:training-job/{job}", job_id=f"id of {job}")


async def call(plane, operation, *, by=None, **params):
    """Call as the owner, or as the job `by` with its key."""
    if by is not None:
        decision = api_rules.decide(grants(by), "logs", operation, params)
        assert decision.is_allowed, decision.reason
    request = Call(
        services=plane.services,
        params=params,
        region="us-west-2",
        access_key_id="K",
        request_id="R",
        grants=None if by is None else grants(by),
    )
    return await dispatch("logs", operation, request)


async def start(plane, text=NEWEST, *, by=None, **more):
    return (await call(plane, "StartQuery", by=by, **{**RANGE, "queryString": text, **more}))["queryId"]


async def results(plane, query_id, *, by=None, **more):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        answer = await call(plane, "GetQueryResults", by=by, queryId=query_id, **more)
        if answer["status"] not in ("Scheduled", "Running"):
            return answer
        await asyncio.sleep(0.002)
    raise AssertionError(f"{query_id} did not end: {answer}")


def messages(answer):
    return [{cell["field"]: cell["value"] for cell in row}["@message"] for row in answer["results"]]


async def refused(awaitable):
    with pytest.raises(WireError) as error:
        await awaitable
    return error.value


async def test_a_query_runs_to_its_end_and_reports_the_records_that_it_scanned(plane):
    answer = await results(plane, await start(plane, "filter @message like /e$/ | sort @timestamp"))
    assert answer["status"] == "Complete"
    assert sorted(messages(answer)) == ["five", "one", "three"]
    assert [cell["field"] for cell in answer["results"][0]] == ["@timestamp", "@message", "@ptr"]
    assert answer["statistics"]["recordsScanned"] == 6
    assert answer["statistics"]["recordsMatched"] == 3
    assert answer["statistics"]["bytesScanned"] == len("onetwothreefourfivesix")
    assert "nextToken" not in answer


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ({"startTime": BEGIN_S + 1, "endTime": BEGIN_S + 1}, ["six", "two"]),
        ({"startTime": BEGIN_S * 1000 + 1500, "endTime": BEGIN_S * 1000 + 2000}, ["three"]),
        ({"startTime": 0, "endTime": BEGIN_S - 1}, []),
        ({"startTime": 0, "endTime": 2**62}, ["five", "four", "one", "six", "three", "two"]),
    ],
)
async def test_times_are_seconds_or_milliseconds_and_both_ends_are_included(plane, times, found):
    answer = await results(plane, await start(plane, "fields @message", **times))
    assert sorted(messages(answer)) == found


@pytest.mark.parametrize(
    "group",
    [
        {"logGroupName": GROUP},
        {"logGroupNames": [GROUP]},
        {"logGroupIdentifiers": [f"arn:aws:logs:us-west-2:0:log-group:{GROUP}"]},
    ],
)
async def test_the_log_group_is_accepted_in_three_forms(plane, group):
    times = {"startTime": BEGIN_S, "endTime": BEGIN_S}
    query = await call(plane, "StartQuery", queryString="stats count(*)", **times, **group)
    assert (await results(plane, query["queryId"]))["results"] == [[{"field": "count(*)", "value": "3"}]]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"logGroupName": "/other"}, "ResourceNotFoundException", "'/other' does not exist"),
        ({"logGroupNames": [GROUP, "/other"], "logGroupName": None}, "ResourceNotFoundException", "'/other'"),
        ({"logGroupName": None}, "InvalidParameterException", "exactly one of"),
        ({"logGroupNames": [GROUP]}, "InvalidParameterException", "exactly one of"),
        ({"startTime": BEGIN_S + 2, "endTime": BEGIN_S}, "InvalidParameterException", "startTime must not"),
        ({"limit": 10_001}, "InvalidParameterException", "limit must be 1 to 10000"),
        ({"queryLanguage": "SQL"}, "InvalidParameterException", "queryLanguage SQL"),
        ({"queryString": "parse @message 'x'"}, "MalformedQueryException", "'parse' is not offered"),
    ],
)
async def test_an_invalid_query_is_refused_at_once(plane, change, code, words):
    params = {name: value for name, value in {**RANGE, "queryString": NEWEST, **change}.items() if value is not None}
    error = await refused(call(plane, "StartQuery", **params))
    assert error.code == code
    assert words in error.message
    assert (await call(plane, "DescribeQueries"))["queries"] == []


async def test_results_are_paged_if_the_client_asks_for_pages(plane):
    query = await start(plane, "fields @message | filter @logStream = 'mine/algo-1' | sort @timestamp")
    first = await results(plane, query, maxItems=2)
    rest = await results(plane, query, maxItems=2, nextToken=first["nextToken"])
    assert messages(first) + messages(rest) == ["one", "two", "three"]
    assert "nextToken" not in rest
    other = await start(plane)
    wrong = call(plane, "GetQueryResults", queryId=other, nextToken=first["nextToken"])
    assert (await refused(wrong)).code == "InvalidParameterException"


async def test_a_job_reads_only_its_own_streams_and_its_own_queries(plane):
    own = await start(plane, "fields @message", by="mine")
    assert sorted(messages(await results(plane, own, by="mine"))) == ["one", "three", "two"]
    theirs = await start(plane, by="theirs")
    owners = await start(plane)
    assert len((await results(plane, owners))["results"]) == 6
    for operation in ("GetQueryResults", "StopQuery"):
        for query in (theirs, owners, "none"):
            assert (await refused(call(plane, operation, by="mine", queryId=query))).code == "ResourceNotFoundException"
    listed = await call(plane, "DescribeQueries", by="mine")
    assert [query["queryId"] for query in listed["queries"]] == [own]
    listed = await call(plane, "DescribeQueries")
    assert [query["queryId"] for query in listed["queries"]] == [owners, theirs, own], "the owner sees all"


async def test_queries_are_listed_by_status_and_page(plane):
    ids = [await start(plane, f"limit {number}") for number in (1, 2, 3)]
    for query in ids:
        await results(plane, query)
    first = await call(plane, "DescribeQueries", maxResults=2, status="Complete", logGroupName=GROUP)
    rest = await call(plane, "DescribeQueries", maxResults=2, status="Complete", nextToken=first["nextToken"])
    found = [*first["queries"], *rest["queries"]]
    assert [query["queryId"] for query in found] == ids[::-1]
    assert found[0]["queryString"] == "limit 3"
    assert (await call(plane, "DescribeQueries", status="Failed"))["queries"] == []
    assert (await call(plane, "DescribeQueries", queryLanguage="PPL"))["queries"] == []
    assert (await refused(call(plane, "DescribeQueries", logGroupName="/x"))).code == "ResourceNotFoundException"


class SlowLogs(LogStore):
    """Returns no line until it is released."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.may_go = asyncio.Event()

    async def advance(self, scan, take, *, budget_s):
        await self.may_go.wait()
        return await super().advance(scan, take, budget_s=budget_s)


@pytest.fixture
async def slow(plane, tmp_path):
    """A plane whose queries block until its logs are released."""
    logs = SlowLogs(tmp_path / "slow", clock=plane.clock)
    desk = query_desk.QueryDesk(logs, plane.clock)
    plane.logs, plane.services = logs, replace(plane.services, logs=logs, log_queries=desk)
    await store(plane, "mine/algo-1", "line")
    yield plane
    await desk.close()
    await logs.close()


async def status_of(plane, query_id):
    await asyncio.sleep(0)
    return (await call(plane, "GetQueryResults", queryId=query_id))["status"]


async def test_a_query_is_stopped_before_and_while_it_runs(slow):
    running, waiting, last = [await start(slow) for _ in range(3)]
    assert await status_of(slow, running) == "Running"
    assert await status_of(slow, waiting) == "Scheduled", "one query of a client runs at a time"
    for query in (waiting, running):
        assert await call(slow, "StopQuery", queryId=query) == {"success": True}
        assert await status_of(slow, query) == "Cancelled"
    slow.logs.may_go.set()
    assert (await results(slow, last))["status"] == "Complete"
    error = await refused(call(slow, "StopQuery", queryId=last))
    assert (error.code, "is not running" in error.message) == ("InvalidParameterException", True)


async def test_a_client_s_queries_beyond_the_limit_are_refused_without_delaying_other_clients(slow):
    for _ in range(query_desk.MAX_UNFINISHED_PER_CLIENT):
        await start(slow, by="theirs")
    error = await refused(start(slow, by="theirs"))
    assert error.code == "LimitExceededException"
    assert "10 of your queries" in error.message
    mine = await start(slow, by="mine")
    assert await status_of(slow, mine) == "Running"


async def test_queries_beyond_the_limit_of_all_clients_are_refused(slow, monkeypatch):
    monkeypatch.setattr(query_desk, "MAX_UNFINISHED", 5)
    for number in range(5):
        await start(slow, by=f"job-{number}")
    assert (await refused(start(slow, by="mine"))).code == "LimitExceededException"


async def test_a_query_that_exceeds_its_time_has_status_timeout_and_partial_results(plane, monkeypatch):
    monkeypatch.setattr(query_desk, "WORK_S", 1e-9)
    monkeypatch.setattr(query_desk, "SLICE_S", 1e-9)
    answer = await results(plane, await start(plane, "fields @message"))
    assert answer["status"] == "Timeout"
    assert messages(answer) == ["four"], "the first line of the first stream"


async def test_a_query_whose_result_is_too_large_fails_with_its_reason(plane, caplog):
    await store(plane, "long/algo-1", *["x" * 200_000] * 50)
    query = await start(plane, "fields @message")
    error = await refused(results(plane, query))
    assert error.code == "InvalidParameterException"
    assert "has the status Failed: the result has more than" in error.message
    assert (await call(plane, "DescribeQueries", status="Failed"))["queries"][0]["queryId"] == query


async def test_results_are_kept_for_a_while_and_in_a_bounded_number(plane, monkeypatch):
    monkeypatch.setattr(query_desk, "MAX_KEPT_PER_CLIENT", 2)
    ids = [await start(plane, by="mine") for _ in range(1)]
    for _ in range(3):
        await results(plane, ids[-1], by="mine")
        ids.append(await start(plane, by="mine"))
    await results(plane, ids[-1], by="mine")
    listed = await call(plane, "DescribeQueries", by="mine")
    assert [query["queryId"] for query in listed["queries"]] == ids[:1:-1]
    plane.clock.advance(query_desk.KEPT_S + 1)
    gone = await refused(call(plane, "GetQueryResults", by="mine", queryId=ids[-1]))
    assert gone.code == "ResourceNotFoundException"
    assert (await call(plane, "DescribeQueries"))["queries"] == []


@pytest.mark.parametrize("step", [timedelta(days=1), timedelta(days=-1)])
async def test_a_step_of_the_clock_neither_drops_results_nor_keeps_them_longer(plane, step):
    query = await start(plane, by="mine")
    await results(plane, query, by="mine")
    plane.clock.set_time_of_day(plane.clock.now() + step)
    plane.clock.advance(query_desk.KEPT_S - 1)
    assert (await results(plane, query, by="mine"))["status"] == "Complete"
    plane.clock.advance(2)
    gone = await refused(call(plane, "GetQueryResults", by="mine", queryId=query))
    assert gone.code == "ResourceNotFoundException"


async def test_large_results_evict_old_ones(plane, monkeypatch):
    monkeypatch.setattr(query_desk, "MAX_KEPT_CHARACTERS", 500)
    ids = []
    for _ in range(3):
        ids.append(await start(plane))
        assert (await results(plane, ids[-1]))["status"] == "Complete"
    kept = [query["queryId"] for query in (await call(plane, "DescribeQueries"))["queries"]]
    assert ids[-1] in kept
    assert ids[0] not in kept


async def test_expired_lines_are_not_found(plane):
    await plane.logs.set_retention(1)
    plane.clock.set_time_of_day(plane.clock.now().replace(year=2030))
    assert (await results(plane, await start(plane)))["results"] == []
