"""Writes that the database committed without a confirmation, because the connection broke at that moment."""

import asyncio

import pytest

from clary.base.errors import StoreError, WireError
from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs import events, transitions
from clary.control.jobs.training_job import EndCause
from clary.control.store.errors import JobExists
from clary.testing.control_plane import ControlPlane

UNCONFIRMED = StoreError("a write was not confirmed: the server closed the connection", retryable=True)


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


def lose_confirmations(plane, monkeypatch, method, wanted=lambda result: True, times=1):
    """Let a store method do its work and then raise, up to `times` times, for each result that `wanted` accepts."""
    work, left = getattr(plane.store, method), [None] * times

    async def unconfirmed(*arguments, **options):
        result = await work(*arguments, **options)
        if left and wanted(result):
            left.pop()
            raise UNCONFIRMED
        return result

    monkeypatch.setattr(plane.store, method, unconfirmed)


async def test_a_job_whose_creation_was_not_confirmed_runs_exactly_once(plane, monkeypatch):
    lose_confirmations(plane, monkeypatch, "create_job")
    with pytest.raises(StoreError):
        await plane.create()
    with pytest.raises(WireError, match="already exists"):  # the error that a client gets on its retry
        await plane.create()
    await plane.passes()
    await plane.run_to_end()
    assert (await plane.job()).status is TrainingJobStatus.COMPLETED
    assert plane.engine.launched == ["job/1"]


async def test_a_job_whose_launch_record_was_not_confirmed_is_launched_once_and_blocks_no_job(plane, monkeypatch):
    lose_confirmations(plane, monkeypatch, "update_job", lambda job: bool(job.hosts) and not plane.engine.launched)
    await plane.create("first")
    await plane.create("second")
    async with asyncio.timeout(30):
        await plane.passes(3)
    assert sorted(plane.engine.launched) == ["first/1", "second/1"]


async def test_a_waiting_job_whose_stop_was_stored_unnoticed_does_not_hold_up_a_pass(plane):
    await plane.create("stopped")
    await plane.create("next")
    stop = events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=0)
    await plane.store.update_job("stopped", lambda job: transitions.apply(job, stop, now=plane.clock.now()))
    async with asyncio.timeout(10):
        await plane.passes()
    assert plane.hub.live_job("stopped") is None
    assert plane.engine.launched == ["next/1"]


async def test_an_unconfirmed_end_of_a_job_is_noticed_and_its_hosts_are_released(plane, monkeypatch):
    await plane.create()
    await plane.passes()
    lose_confirmations(plane, monkeypatch, "update_job", lambda job: job.is_terminal)
    plane.engine.end_agent("job", "algo-1")
    await plane.passes(4)
    job = await plane.job()
    assert (job.status, job.is_released) == (TrainingJobStatus.FAILED, True)
    assert plane.hub.active_jobs() == []


async def test_a_refused_creation_leaves_no_job(plane):
    await plane.create()
    job = await plane.job()
    with pytest.raises(JobExists):
        await plane.hub.create(job, {})
    await plane.hub.settle_doubts()
    assert plane.hub.live_job("job") == job
