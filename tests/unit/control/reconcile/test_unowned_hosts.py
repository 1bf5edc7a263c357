"""Hosts without a job: one that cannot be released does not keep those behind it."""

import asyncio
import time
from typing import Any

import pytest

from clary.control.engines.interface import HeldAttempt, Released
from clary.control.reconcile import unowned_hosts
from clary.control.reconcile.unowned_hosts import UnownedHosts

BAD, GOOD = HeldAttempt(name="pool_00000000000a", attempt=1), HeldAttempt(name="pool_00000000000b", attempt=1)


class OneBadHost:
    """An engine that cannot end the first host for some time."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.held = [BAD, GOOD]
        self.ended: list[str] = []

    async def unreleased(self) -> list[HeldAttempt]:
        return list(self.held)

    async def released_jobs(self) -> list[str]:
        return []

    async def end(self, pool: str) -> Released:
        if pool == BAD.name and self.num_failures:
            self.num_failures -= 1
            raise OSError(5, "Input/output error")
        self.held = [held for held in self.held if held.name != pool]
        self.ended.append(pool)
        return Released()


class NoJobs:
    """A hub without jobs."""

    def active_jobs(self) -> list[Any]:
        return []

    def waiting_jobs(self) -> dict[str, Any]:
        return {}


class OwnStore:
    """A store without jobs, whose lease this service has."""

    async def require_lease(self) -> None:
        return None


def unowned_of(engine: OneBadHost) -> UnownedHosts:
    return UnownedHosts(NoJobs(), engine, OwnStore())


async def test_the_reaper_goes_on_after_an_error_of_the_file_system(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unowned_hosts, "REAP_INTERVAL_S", 0.001)
    engine = OneBadHost(num_failures=3)
    task = asyncio.create_task(unowned_of(engine).reap())
    try:
        async with asyncio.timeout(10):
            while engine.held:
                await asyncio.sleep(0.001)
                assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert engine.ended == [GOOD.name, BAD.name]
    assert "Input/output error" in caplog.text


async def test_a_start_releases_the_other_hosts_and_tries_the_bad_one_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unowned_hosts, "RETRY_S", 0.05)
    engine = OneBadHost(num_failures=2)
    began_s = time.monotonic()
    await asyncio.wait_for(unowned_of(engine).take_back(), 20)
    assert engine.ended == [GOOD.name, BAD.name]
    assert time.monotonic() - began_s >= 0.1
