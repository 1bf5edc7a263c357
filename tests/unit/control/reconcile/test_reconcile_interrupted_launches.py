"""A service and agents that die while hosts are launched: no attempt gets two agents for a host that was heard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clary.contract.agent_protocol import HostPhase, LogBatch, LogBlock
from clary.contract.launch_plan import LaunchPlan
from clary.contract.statuses import TrainingJobStatus
from clary.control.reconcile import host_losses
from clary.control.settings import Settings
from clary.testing.control_plane import ControlPlane, FakeAgent
from clary.testing.fake_clock import FakeClock
from clary.testing.fake_engine import FakeEngine

LINES = LogBatch(first_sequence=0, blocks=(LogBlock(at_ms=1_700_000_000_000, text="one\ntwo\nthree"),))


class World:
    """A machine with a state folder; services come and go."""

    def __init__(self, home: Path, *, max_restarts: int = 3) -> None:
        self._home = home
        self._settings = Settings(home=str(home), max_restarts=max_restarts)
        self.clock = FakeClock()
        self.engine = FakeEngine()

    @asynccontextmanager
    async def service(self) -> AsyncIterator[ControlPlane]:
        async with ControlPlane.open(
            self._home, clock=self.clock, engine=self.engine, settings=self._settings
        ) as plane:
            yield plane

    async def launch(self, plane: ControlPlane) -> tuple[FakeAgent, FakeAgent]:
        await plane.create(num_hosts=2, CheckpointConfig={"S3Uri": "s3://bucket/kept"})
        await plane.passes()
        return plane.agent(host="algo-1"), plane.agent(host="algo-2")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def lines_of(plane: ControlPlane, host: str = "algo-1") -> int:
    job = await plane.job()
    (stream,) = (name for name in job.log_streams if f"/{host}-" in name)
    return await plane.logs.next_sequence(stream)


async def test_a_heard_host_whose_agent_died_with_the_service_ends_the_attempt(world: World) -> None:
    async with world.service() as plane:
        one, _ = await world.launch(plane)
        await one.report(HostPhase.PREPARING)
        await one.send_logs(LINES)
        assert await lines_of(plane) == 3
        world.engine.end_all_agents("job")
    async with world.service() as plane:
        for _ in range(4):
            await plane.passes()
            world.clock.advance(2)
        job = await plane.job()
        assert world.engine.started == ["job/1", "job/2"], "attempt 1 gets no second pair of agents"
        assert (job.attempt, job.status) == (2, TrainingJobStatus.IN_PROGRESS)
        before = await lines_of(plane)
        receipt = await plane.agent(attempt=2).send_logs(LINES)
        assert receipt.next_sequence == 3
        assert await lines_of(plane) == before + 3


async def test_without_retries_the_job_fails_and_names_the_lost_host(tmp_path: Path) -> None:
    world = World(tmp_path, max_restarts=0)
    async with world.service() as plane:
        one, _ = await world.launch(plane)
        await one.report(HostPhase.PREPARING)
        world.engine.end_all_agents("job")
    async with world.service() as plane:
        await plane.passes(3)
        described = await plane.describe()
        assert described["TrainingJobStatus"] == "Failed"
        assert "was lost: its agent ended" in described["FailureReason"]
        assert world.engine.started == ["job/1"]


async def test_a_host_whose_log_has_lines_was_heard_even_without_a_report(world: World) -> None:
    async with world.service() as plane:
        one, _ = await world.launch(plane)
        await one.send_logs(LINES)
        world.engine.end_all_agents("job")
    async with world.service() as plane:
        await plane.passes(3)
        assert world.engine.started == ["job/1", "job/2"]


async def test_a_host_that_was_never_heard_gets_an_agent_beside_one_that_lives(world: World) -> None:
    async with world.service() as plane:
        one, _ = await world.launch(plane)
        await one.report(HostPhase.PREPARING)
        world.engine.end_agent("job", "algo-2")
    async with world.service() as plane:
        await plane.passes(2)
        assert world.engine.started == ["job/1", "job/1"]
        job = await plane.job()
        assert (job.attempt, job.end_cause, job.ending) == (1, None, None)


async def test_an_agent_that_dies_while_the_launch_is_repeated_is_not_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.service() as plane:
        one, _ = await world.launch(plane)
        await one.report(HostPhase.PREPARING)
    launch = world.engine.launch

    async def launch_late(plan: LaunchPlan) -> LaunchPlan:
        plan = await launch(plan)
        if plan.attempt == 1:
            world.engine.end_agent("job", "algo-1")
        return plan

    monkeypatch.setattr(world.engine, "launch", launch_late)
    async with world.service() as plane:
        await plane.passes()
        assert world.engine.alive("job") == {"algo-1": False, "algo-2": True}
        for _ in range(4):
            await plane.passes()
            world.engine.end_agent("job", "algo-2")
            world.clock.advance(15)
        assert world.engine.started == ["job/1", "job/1", "job/2"]


@pytest.mark.parametrize(
    ("heard", "alive", "repeats"),
    [
        ((), (), True),
        ((), ("algo-1", "algo-2"), True),
        (("algo-1",), ("algo-1",), True),
        (("algo-1",), ("algo-2",), False),
        (("algo-1", "algo-2"), ("algo-1",), False),
    ],
)
def test_a_launch_is_repeated_only_while_each_heard_host_has_its_agent(
    heard: tuple[str, ...], alive: tuple[str, ...], repeats: bool
) -> None:
    states = {name: name in alive for name in ("algo-1", "algo-2")}
    assert host_losses.can_repeat_launch(frozenset(heard), states) is repeats


async def test_hosts_are_heard_by_reports_and_by_lines_of_this_attempt(world: World) -> None:
    async with world.service() as plane:
        one, _ = await world.launch(plane)
        job = await plane.job()

        def ends(*lines: int) -> dict[str, int]:
            return dict(zip(job.log_streams, lines, strict=True))

        assert host_losses.heard_hosts(job, ends(0, 0)) == frozenset()
        assert host_losses.heard_hosts(job, ends(0, 2)) == {"algo-2"}
        later = replace(job, log_bases=ends(5, 5))
        assert host_losses.heard_hosts(later, ends(5, 5)) == frozenset()
        assert host_losses.heard_hosts(later, ends(6, 5)) == {"algo-1"}
        await one.report(HostPhase.PREPARING)
        assert host_losses.heard_hosts(await plane.job(), ends(0, 0)) == {"algo-1"}
