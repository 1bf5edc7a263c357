"""The service's machine goes down while a job trains there: the time in which it is off is no training."""

from datetime import timedelta
from pathlib import Path

import pytest

from clary.base import clock as clock_module
from clary.contract.agent_protocol import HostPhase
from clary.contract.statuses import SecondaryStatus
from clary.control.jobs.status_rows import seconds_in
from clary.control.settings import Settings
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import FakeClock
from clary.testing.fake_engine import FakeEngine
from clary.testing.fake_queue_engine import FakeQueueEngine

HOUR_S = 3600.0
RENEWAL_S = 10.0
REQUEST = {
    "CheckpointConfig": {"S3Uri": "s3://bucket/kept"},
    "StoppingCondition": {"MaxRuntimeInSeconds": 4 * int(HOUR_S)},
}


async def train_for_an_hour(home: Path, clock: FakeClock, engine: FakeEngine, settings: Settings) -> None:
    async with ControlPlane.open(home, clock=clock, engine=engine, settings=settings) as plane:
        await plane.create(**REQUEST)
        await plane.passes()
        if isinstance(engine, FakeQueueEngine):
            engine.granted.update(engine.asked)
            await plane.passes(2)
        agent = plane.agent()
        for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
            await agent.report(phase)
        for _ in range(4):
            clock.advance(HOUR_S / 4)
            await agent.report()
            await plane.passes()


async def train_until_the_power_fails(home: Path, clock: FakeClock, engine: FakeEngine, settings: Settings) -> None:
    await train_for_an_hour(home, clock, engine, settings)
    engine.end_all_agents("job")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=str(tmp_path))


@pytest.mark.parametrize("off_s", [6 * HOUR_S, 400 * 24 * HOUR_S, -30 * 24 * HOUR_S])
@pytest.mark.parametrize("max_restarts", [0, 3])
async def test_the_time_without_power_is_no_training_whatever_the_clock_shows_after_the_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: float, max_restarts: int
) -> None:
    settings = Settings(home=str(tmp_path), max_restarts=max_restarts)
    clock, engine = FakeClock(), FakeEngine()
    await train_until_the_power_fails(tmp_path, clock, engine, settings)
    last_alive_at = clock.now() - timedelta(seconds=RENEWAL_S)
    clock.set_time_of_day(clock.now() + timedelta(seconds=off_s))
    monkeypatch.setattr(clock_module, "boot_id", lambda: "another boot")
    async with ControlPlane.open(
        tmp_path, clock=clock, engine=engine, settings=settings, last_alive_at=last_alive_at
    ) as plane:
        for _ in range(3):
            await plane.passes()
            clock.advance(1)
        job, facts = await plane.job(), await plane.describe()
        trained_s = seconds_in(job.transitions, SecondaryStatus.TRAINING, now=plane.hub.now_of(job))
        assert trained_s == pytest.approx(HOUR_S - RENEWAL_S)
        if max_restarts:
            assert (facts["TrainingJobStatus"], job.attempt) == ("InProgress", 2)
            assert job.end_cause is None
        else:
            assert facts["TrainingJobStatus"] == "Failed"
            assert "was lost" in facts["FailureReason"]
            assert facts["TrainingTimeInSeconds"] == pytest.approx(HOUR_S - RENEWAL_S, abs=1)


@pytest.mark.parametrize("max_restarts", [0, 3])
@pytest.mark.parametrize("sign_after_s", [None, HOUR_S / 2])
async def test_the_time_in_which_service_and_hosts_were_both_away_within_a_boot_is_no_training(
    tmp_path: Path, max_restarts: int, sign_after_s: float | None
) -> None:
    """As in a container that is started again hours later: the machine was up all the time."""
    settings = Settings(home=str(tmp_path), max_restarts=max_restarts)
    clock, engine = FakeClock(), FakeEngine()
    await train_until_the_power_fails(tmp_path, clock, engine, settings)
    last_alive_at = clock.now() - timedelta(seconds=RENEWAL_S)
    trained_s = HOUR_S - RENEWAL_S
    if sign_after_s is not None:  # the hosts outlived the service for a while
        trained_s = HOUR_S + sign_after_s
        engine.last_signs["algo-1"] = clock.now() + timedelta(seconds=sign_after_s)
    clock.advance(6 * HOUR_S)
    async with ControlPlane.open(
        tmp_path, clock=clock, engine=engine, settings=settings, last_alive_at=last_alive_at
    ) as plane:
        for _ in range(3):
            await plane.passes()
            clock.advance(1)
        job, facts = await plane.job(), await plane.describe()
        found_s = seconds_in(job.transitions, SecondaryStatus.TRAINING, now=plane.hub.now_of(job))
        assert found_s == pytest.approx(trained_s)
        if max_restarts:
            assert (facts["TrainingJobStatus"], job.attempt) == ("InProgress", 2)
            assert job.end_cause is None
        else:
            assert facts["TrainingJobStatus"] == "Failed"
            assert "was lost" in facts["FailureReason"]
            assert facts["TrainingTimeInSeconds"] == pytest.approx(trained_s, abs=1)


async def test_a_host_that_has_reported_to_this_service_is_lost_when_it_is_missed(
    tmp_path: Path, settings: Settings
) -> None:
    clock, engine = FakeClock(), FakeEngine()
    await train_for_an_hour(tmp_path, clock, engine, settings)
    last_alive_at = clock.now()
    clock.advance(HOUR_S)
    async with ControlPlane.open(
        tmp_path, clock=clock, engine=engine, settings=settings, last_alive_at=last_alive_at
    ) as plane:
        await plane.passes()
        await plane.agent().report()
        engine.end_all_agents("job")
        await plane.passes()
        job = await plane.job()
        trained_s = seconds_in(job.transitions, SecondaryStatus.TRAINING, now=plane.hub.now_of(job))
        assert trained_s == pytest.approx(2 * HOUR_S)


async def test_a_lease_of_a_clock_that_was_ahead_counts_no_more_than_the_present_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    clock, engine = FakeClock(), FakeEngine()
    await train_until_the_power_fails(tmp_path, clock, engine, settings)
    monkeypatch.setattr(clock_module, "boot_id", lambda: "another boot")
    wrong = clock.now() + timedelta(days=300)
    clock.set_time_of_day(clock.now() + timedelta(seconds=60))
    async with ControlPlane.open(tmp_path, clock=clock, engine=engine, settings=settings, last_alive_at=wrong) as plane:
        await plane.passes(3)
        job = await plane.job()
        assert job.attempt == 2
        trained_s = seconds_in(job.transitions, SecondaryStatus.TRAINING, now=clock.now())
        assert trained_s == pytest.approx(HOUR_S + 60)


async def test_hosts_of_other_machines_train_on_while_the_service_s_machine_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    clock, engine = FakeClock(), FakeQueueEngine()
    await train_for_an_hour(tmp_path, clock, engine, settings)
    last_alive_at = clock.now()
    clock.advance(HOUR_S)
    monkeypatch.setattr(clock_module, "boot_id", lambda: "another boot")
    async with ControlPlane.open(
        tmp_path, clock=clock, engine=engine, settings=settings, last_alive_at=last_alive_at
    ) as plane:
        await plane.passes()
        await plane.agent().report()
        engine.end_all_agents("job")
        await plane.passes()
        job = await plane.job()
        trained_s = seconds_in(job.transitions, SecondaryStatus.TRAINING, now=clock.now())
        assert trained_s == pytest.approx(2 * HOUR_S)
