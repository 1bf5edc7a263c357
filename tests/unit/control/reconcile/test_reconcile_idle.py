"""A service without jobs sets no periodic timer: it wakes when a job is created."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from clary.control.reconcile import reconciler
from clary.control.reconcile.desks.profile_keeping import keep_profiles
from clary.control.reconcile.profiler_rules import ProfilerRules
from clary.testing.control_plane import ControlPlane

RULE = {
    "RuleConfigurationName": "low",
    "RuleEvaluatorImage": "rules:1",
    "RuleParameters": {"rule_to_invoke": "LowGPUUtilization"},
}


class FakeObjects:
    """Refuses no request, and stores nothing."""

    async def request(self, method, bucket, *, key="", body=b""):
        raise AssertionError(f"{method} {bucket}/{key}: nothing is stored here")


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


async def timers_at_rest():
    """Return the active timers of this event loop in words, after pending work had time to end."""
    for _ in range(300):
        await asyncio.to_thread(lambda: None)
    return [repr(timer) for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]


@contextlib.asynccontextmanager
async def running(work):
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_keeper_of_profiles_sets_timers_only_while_there_are_jobs(plane):
    work = keep_profiles(plane.profiles, plane.hub, plane.store.get_job, FakeObjects(), interval_s=30.0)
    async with running(work):
        assert await timers_at_rest() == [], "without jobs nothing is to be looked at"
        await plane.create()
        assert len(await timers_at_rest()) == 1, "a job came"


async def test_profiler_rules_set_timers_only_while_a_job_has_rules(plane):
    rules = ProfilerRules(plane.hub, plane.store, plane.store.series, FakeObjects(), clock=plane.clock)
    async with running(rules.run(interval_s=30.0)):
        assert await timers_at_rest() == [], "no job is watched"
        await plane.create("plain")
        assert await timers_at_rest() == [], "that job has no rules"
        await plane.create(ProfilerRuleConfigurations=[RULE])
        assert len(await timers_at_rest()) == 1, "a job with rules came"


async def test_the_wait_for_jobs_ends_with_the_first_job_and_starts_again_after_the_last(plane):
    waiting = asyncio.create_task(plane.hub.wait_for_jobs())
    await timers_at_rest()
    assert not waiting.done()
    await plane.create()
    await waiting
    await plane.run_to_end()
    async with running(plane.hub.wait_for_jobs()) as waiting:
        await timers_at_rest()
        assert not waiting.done()


async def test_a_change_after_a_pause_is_handled_at_once_and_the_next_one_waits_for_others(plane, monkeypatch):
    monkeypatch.setattr(reconciler, "GATHER_S", 0.0)
    async with running(plane.reconciler.run()):
        await timers_at_rest()
        monkeypatch.setattr(reconciler, "GATHER_S", 3600.0)
        plane.clock.advance(3600)
        await plane.create("first")
        async with asyncio.timeout(30):  # of an hour
            while plane.hub.live_job("first").attempt == 0:
                await plane.hub.wait_for_job("first", 1.0)
        await plane.create("second")
        await timers_at_rest()
        assert plane.hub.live_job("second").attempt == 0, "the next pass comes an hour after the last"
