"""Writes that the database committed and whose confirmation was lost: the connection died in that very moment."""

import asyncio

import pytest

from clary.base.errors import StoreError, WireError
from clary.contract.statuses import TrainingJobStatus
from clary.control.store.errors import JobExists
from clary.testing.control_plane import ControlPlane

UNCONFIRMED = StoreError("a write was not confirmed: the server closed the connection", retryable=True)


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


def lose_confirmations(plane, monkeypatch, method, wanted=lambda result: True, times=1):
    """Let a method of the store do its work and raise, so many times, when `wanted` takes its result."""
    work, left = getattr(plane.store, method), [None] * times

    async def unconfirmed(*arguments, **options):
        result = await work(*arguments, **options)
        if left and wanted(result):
            left.pop()
            raise UNCONFIRMED
        return result

    monkeypatch.setattr(plane.store, method, unconfirmed)


async def test_a_job_whose_creation_was_not_confirmed_runs_all_the_same_and_once(plane, monkeypatch):
    lose_confirmations(plane, monkeypatch, "create_job")
    with pytest.raises(StoreError):
        await plane.create()
    with pytest.raises(WireError, match="already exists"):  # what a client sees that tries again
        await plane.create()
    await plane.passes()
    await plane.run_to_end()
    assert (await plane.job()).status is TrainingJobStatus.COMPLETED
    assert plane.engine.launched == ["job/1"]


async def test_a_job_whose_hosts_were_asked_for_without_confirmation_is_launched_once_and_blocks_nobody(
    plane, monkeypatch
):
    lose_confirmations(plane, monkeypatch, "update_job", lambda job: bool(job.hosts) and not plane.engine.launched)
    await plane.create("first")
    await plane.create("second")
    async with asyncio.timeout(30):
        await plane.passes(3)
    assert sorted(plane.engine.launched) == ["first/1", "second/1"]


async def test_an_end_whose_confirmation_was_lost_is_known_and_the_hosts_are_taken_back(plane, monkeypatch):
    await plane.create()
    await plane.passes()
    lose_confirmations(plane, monkeypatch, "update_job", lambda job: job.is_terminal)
    plane.engine.end_agent("job", "algo-1")
    await plane.passes(4)
    job = await plane.job()
    assert (job.status, job.is_released) == (TrainingJobStatus.FAILED, True)
    assert plane.hub.active_jobs() == []


async def test_a_creation_that_was_refused_leaves_no_doubt(plane):
    await plane.create()
    job = await plane.job()
    with pytest.raises(JobExists):
        await plane.hub.create(job, {})
    await plane.hub.settle_doubts()
    assert plane.hub.live_job("job") == job
