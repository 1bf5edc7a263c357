"""The page `stragglers` of a job, and its part in the job's other pages."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from server_parts import START, START_MS, running_job

from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.series.queries import Point, Series, SeriesAnswer
from clary.control.server.pages.stragglers_page import KEPT_S, MOST_MOMENTS, StragglerPages, host_facts, rank_steps
from clary.testing.fake_clock import FakeClock

STEP_MS = 5000
PARTS = {"data_wait_s": 0.01, "forward_s": 0.1, "backward_s": 0.2, "optimizer_s": 0.05}


def points(value, *, number=12, step_ms=STEP_MS):
    ends_ms = START_MS + 60_000
    return tuple(Point(ends_ms - at * step_ms, value, value, value, 10, value) for at in reversed(range(number)))


def series_of(rank, host, *, step_s=0.5, number=12, **changes):
    parts = {**PARTS, **changes}
    values = {"step_s": step_s, "communication_s": step_s - sum(parts.values()), **parts}
    return [
        Series(host=host, name=f"rank-{rank}/{name}", points=points(value, number=number))
        for name, value in values.items()
    ]


class FakeSeries:
    """Answers each query with the same series and records the queries."""

    def __init__(self, series):
        self.series = series
        self.queries = []

    async def query(self, query):
        self.queries.append(query)
        return SeriesAnswer(series=tuple(one for one in self.series if query.wants(one.name)))


def services_with(series):
    clock = FakeClock()
    return SimpleNamespace(clock=clock, store=SimpleNamespace(series=FakeSeries(series)))


SLOW = [*series_of(0, "algo-1"), *series_of(1, "algo-2", backward_s=0.33)]


async def test_ranks_and_the_verdict_are_shown():
    services = services_with(SLOW)
    page = await StragglerPages(services).page(running_job())
    assert [(rank["rank"], rank["host"], rank["backward_s"]) for rank in page["ranks"]] == [
        (0, "algo-1", 0.2),
        (1, "algo-2", 0.33),
    ]
    assert (page["verdict"]["kind"], page["verdict"]["host"], page["verdict"]["ranks"]) == ("compute", "algo-2", [1])
    assert page["lasts"] is True
    assert len(services.store.series.queries) == 1


async def test_facts_of_a_job_have_the_verdict_and_a_warning_while_the_job_runs():
    pages = StragglerPages(services_with(SLOW))
    facts = await pages.facts(running_job(), {"warnings": ["a word"]})
    assert facts["stragglers"]["is_found"] is True
    assert facts["warnings"] == ["a word", facts["stragglers"]["text"]]
    over = replace(running_job(), status=TrainingJobStatus.COMPLETED, secondary_status=SecondaryStatus.COMPLETED)
    facts = await pages.facts(over, {"warnings": []})
    assert facts["warnings"] == []
    assert facts["stragglers"]["is_found"] is True, "it was so in the end"


async def test_a_job_without_hosts_causes_no_query():
    services = services_with(SLOW)
    facts = await StragglerPages(services).facts(replace(running_job(), hosts={}), {"warnings": []})
    assert facts == {"warnings": [], "stragglers": None}
    assert services.store.series.queries == []


async def test_a_job_without_slow_ranks_gets_no_warning():
    even = [*series_of(0, "algo-1"), *series_of(1, "algo-2")]
    facts = await StragglerPages(services_with(even)).facts(running_job(), {"warnings": []})
    assert facts["warnings"] == []
    assert facts["stragglers"]["kind"] == "nobody"


async def test_a_result_is_cached_for_a_moment_and_then_computed_again():
    services = services_with(SLOW)
    pages = StragglerPages(services)
    await pages.page(running_job())
    await pages.page(running_job())
    assert len(services.store.series.queries) == 1
    services.clock.advance(KEPT_S + 1)
    await pages.page(running_job())
    assert len(services.store.series.queries) == 2


async def test_long_steps_are_read_over_a_longer_time():
    services = services_with([*series_of(0, "algo-1", number=2), *series_of(1, "algo-2", number=2)])
    page = await StragglerPages(services).page(running_job())
    short, long = services.store.series.queries
    assert long.end_ms - long.start_ms > short.end_ms - short.start_ms
    assert page["verdict"]["kind"] == "unknown"


async def test_an_ended_job_is_read_up_to_its_end():
    services = services_with(SLOW)
    job = replace(running_job(), training_ended_at=START + timedelta(seconds=60))
    await StragglerPages(services).page(job)
    assert services.store.series.queries[0].end_ms == START_MS + 60_001


def test_only_the_newest_steps_count_and_times_without_a_step_are_ignored():
    one = [
        Series(host="algo-1", name="rank-0/step_s", points=points(0.5, number=MOST_MOMENTS + 6)),
        Series(host="algo-1", name="rank-0/forward_s", points=points(0.1, number=3)),
        Series(host="algo-2", name="rank-1/forward_s", points=points(0.1, number=3)),
        Series(host="algo-1", name="rank-x/step_s", points=points(0.5)),
        Series(host="algo-1", name="host/cpu_percent", points=points(0.5)),
    ]
    first, second = rank_steps(one)
    assert len(first.moments) == MOST_MOMENTS
    assert [times.forward_s for times in first.moments.values()][-4:] == [0.0, 0.1, 0.1, 0.1]
    assert second.moments == {}


def test_facts_of_hosts_are_medians():
    one = Series(host="algo-1", name="host/network_rtt_ms", points=(*points(0.2, number=9), *points(80.0, number=2)))
    found = host_facts([one, Series(host="algo-2", name="host/cpu_throttled_time_percent", points=points(70.0))])
    assert found["algo-1"].rtt_ms == pytest.approx(0.2)
    assert found["algo-2"].refused_percent == 70.0
    assert found["algo-2"].rtt_ms is None
