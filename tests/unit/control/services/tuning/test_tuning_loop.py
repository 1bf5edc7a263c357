"""The tick of the loop over tuning jobs, while one of them reports without a pause."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tuning_runs import TuningRuns, request_of

from clary.base.errors import StoreError
from clary.control.services.tuning import tuning_keeper
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


@pytest.fixture
def runs(plane, monkeypatch):
    monkeypatch.setattr(tuning_keeper, "TICK_S", 0.2)
    return TuningRuns(plane)


@asynccontextmanager
async def busy(plane, runs):
    """Run the loop, and let a tuning job report much more often than the loop ticks."""

    async def report_on():
        while True:
            plane.tuning_keeper.wake("busy")
            await asyncio.sleep(0.005)

    await runs.call("CreateHyperParameterTuningJob", **request_of("busy"))
    tasks = [asyncio.create_task(plane.tuning_keeper.run()), asyncio.create_task(report_on())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition):
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_the_run_time_limit_ends_a_tuning_job_while_another_one_reports_without_a_pause(plane, runs):
    async def has_trials():
        return bool(await runs.trials("limited"))

    async def is_over():
        return (await plane.store.tuning.get("limited")).is_terminal

    async with busy(plane, runs):
        await runs.call("CreateHyperParameterTuningJob", **request_of("limited", runtime_s=120))
        await until(has_trials)
        plane.clock.advance(121)
        await until(is_over)


async def test_a_look_that_failed_is_repeated_while_another_tuning_job_reports_without_a_pause(
    plane, runs, monkeypatch
):
    look_at, failures = plane.tuning_keeper._look_at, [None]

    async def failing(name):
        if name == "limited" and failures:
            failures.pop()
            raise StoreError("the database is away", retryable=True)
        await look_at(name)

    async def has_trials():
        return not failures and len(await runs.trials("limited")) == 2

    monkeypatch.setattr(plane.tuning_keeper, "_look_at", failing)
    async with busy(plane, runs):
        await runs.call("CreateHyperParameterTuningJob", **request_of("limited"))
        await until(has_trials)
