"""Resolution of the series read for profiler rules and reports, and responses that are too long."""

from dataclasses import replace
from datetime import timedelta

import pytest

from clary.base.errors import ContractError
from clary.control.profiling.measurements import JUDGED_NAMES, NAMES
from clary.control.reconcile.job_measurements import look_at, read_measurements
from clary.control.series.queries import MAX_PATTERN, MAX_WILDCARDS, SeriesAnswer
from clary.testing.control_plane import ControlPlane


class FakeSeries:
    """Records its queries; refuses steps below a limit, as a store does when the response is too long."""

    def __init__(self, least_step_ms=0):
        self.asked = []
        self.least_step_ms = least_step_ms

    async def query(self, query):
        self.asked.append(query)
        if query.step_ms < self.least_step_ms:
            raise ContractError("the answer has more than 100000 points")
        return SeriesAnswer(series=(), num_dropped=3, damaged=("block 7",))


@pytest.fixture
async def job(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2)
        await plane.passes()
        job = await plane.job()
        yield replace(job, training_started_at=job.created_at)


def after(job, **span):
    return job.created_at + timedelta(**span)


@pytest.mark.parametrize(
    ("span", "step_ms"),
    [({"seconds": 30}, 500), ({"minutes": 6}, 1000), ({"minutes": 40}, 10_000), ({"days": 7}, 850_000)],
)
async def test_a_short_job_is_read_row_by_row_and_a_long_one_by_whole_roll_ups(job, span, step_ms):
    series = FakeSeries()
    measured = await read_measurements(series, job, now=after(job, **span))
    assert series.asked[0].step_ms == step_ms
    assert measured.measurements.step_ms == step_ms
    assert (measured.num_dropped, measured.damaged) == (3, ("block 7",))
    assert [host.name for host in measured.measurements.hosts] == ["algo-1", "algo-2"]


async def test_a_running_job_is_read_at_a_coarser_step_and_with_fewer_series(job):
    series = FakeSeries()
    await look_at(series, job, now=after(job, days=7))
    assert series.asked[0].step_ms == 1_690_000
    assert series.asked[0].names == JUDGED_NAMES


async def test_a_response_that_is_too_long_is_requested_again_with_twice_the_step(job):
    series = FakeSeries(least_step_ms=4000)
    measured = await read_measurements(series, job, now=after(job, minutes=6))
    assert [query.step_ms for query in series.asked] == [1000, 2000, 4000]
    assert measured.measurements.step_ms == 4000


async def test_a_job_with_too_many_series_for_any_response_reports_the_lack_of_measurements(job):
    measured = await read_measurements(FakeSeries(least_step_ms=10**9), job, now=after(job, minutes=6))
    assert measured.measurements.series == {}
    assert "more series" in measured.damaged[0]


@pytest.mark.parametrize("names", [NAMES, JUDGED_NAMES])
def test_the_requested_names_are_a_valid_pattern_for_series(names):
    assert len(names) <= MAX_PATTERN
    assert names.count("*") + names.count("?") <= MAX_WILDCARDS
