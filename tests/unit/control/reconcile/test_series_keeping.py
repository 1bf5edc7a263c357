"""Maintenance of series in the background; no error of the store ends the task."""

import asyncio
import contextlib
from array import array
from dataclasses import replace

import pytest

from clary.base.errors import StoreError
from clary.contract.metric_samples import SampleBatch
from clary.control.reconcile import series_keeping
from clary.control.reconcile.gateways.sample_gateway import FRESH_S, SampleGateway
from clary.control.reconcile.series_keeping import keep_series, keep_series_once
from clary.control.series.queries import SeriesQuery
from clary.control.series.tables import SeriesTable
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import START

START_MS = int(START.timestamp() * 1000)
DAY_S = 86_400.0


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create()
        await plane.passes()
        yield plane


async def store_rows(plane, num_rows=1200):
    table = SeriesTable(
        at_ms=array("q", (START_MS + 500 * row for row in range(num_rows))),
        columns={"host/x": (array("f", map(float, range(num_rows))),)},
    )
    await plane.store.series.append("job", 1, "algo-1", table, first_row=0)


async def counts(plane, step_ms):
    """Return the numbers of values behind each point of a query at this step."""
    query = SeriesQuery(job_name="job", start_ms=START_MS, end_ms=START_MS + 600_000, step_ms=step_ms)
    (series,) = (await plane.store.series.query(query)).series
    return {point.count for point in series.points}


async def keep(plane, *, after_s, **settings):
    plane.clock.advance(after_s)
    for _ in range(4):
        await keep_series_once(plane.store.series, replace(plane.settings, **settings), plane.clock)


async def test_rows_are_kept_for_a_day_and_roll_ups_for_a_month(plane):
    await store_rows(plane)
    await keep(plane, after_s=DAY_S / 2)
    assert await counts(plane, 500) == {1}
    await keep(plane, after_s=DAY_S)
    assert await counts(plane, 500) == {20}
    await keep(plane, after_s=31 * DAY_S)
    assert await counts(plane, 500) == {600}
    await keep(plane, after_s=10_000 * DAY_S)
    assert await counts(plane, 500) == {600}


async def test_settings_of_0_keep_rows_and_roll_ups_forever(plane):
    await store_rows(plane)
    await keep(plane, after_s=10_000 * DAY_S, series_rows_kept_s=0.0, series_rollups_kept_s=0.0)
    assert await counts(plane, 500) == {1}
    assert await counts(plane, 10_000) == {20}


async def test_maintenance_is_retried_after_an_error_of_the_store(plane, monkeypatch):
    asked = asyncio.Event()
    calls = []

    async def refuse_once(*_):
        calls.append(1)
        if len(calls) == 1:
            raise StoreError("the database is away")
        asked.set()
        return 0, 0

    monkeypatch.setattr(series_keeping, "keep_series_once", refuse_once)
    samples = SampleGateway(plane.store.series, plane.clock)
    task = asyncio.create_task(keep_series(plane.store.series, samples, plane.settings, plane.clock, interval_s=0.001))
    async with asyncio.timeout(30):
        await asked.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_last_values_of_silent_hosts_are_evicted(plane):
    samples = SampleGateway(plane.store.series, plane.clock)
    job = plane.hub.live_job("job")
    batch = SampleBatch(first_row=0, at_ms=(START_MS, START_MS), names=("host/x",), columns=((1.0, None),))
    await samples.append(job, "algo-1", batch)
    (last,) = samples.last_values([job])
    assert (last.host, last.values) == ("algo-1", {"host/x": 1.0})
    plane.clock.advance(FRESH_S + 1)
    samples.forget_stale()
    assert samples.last_values([job]) == []
