"""Jobs of several attempts: the reconciler, the hub and the gateway when an attempt ends early."""

from dataclasses import replace
from datetime import timedelta

import pytest

from clary.base.errors import StoreError, WireError
from clary.contract.agent_protocol import HostPhase, LogBatch, LogBlock, OrderKind
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import events
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.scheduling.spot import parse_schedule
from clary.control.server.actions.spot_actions import reclaim
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import FakeClock
from clary.testing.fake_engine import FakeEngine

SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
}
RECLAIMED = events.Reclaimed(reason="The spot capacity of algo-1 was reclaimed", grace_s=5)


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


async def run(plane, *, name="job", attempt=1, num_hosts=1):
    agents = [plane.agent(name, f"algo-{index + 1}", attempt=attempt) for index in range(num_hosts)]
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        for agent in agents:
            await agent.report(phase)
    return agents


async def stop(plane, agents):
    """Have agents obey the orders that end an attempt."""
    for agent in agents:
        assert (await plane.job(agent.name)).hosts[agent.host].order.kind is OrderKind.STOP
        await agent.report(HostPhase.EXITED, exits=(replace(plane.exit_of(143), is_consequence=True),))
    for agent in agents:
        assert (await plane.job(agent.name)).hosts[agent.host].order.kind is OrderKind.RELEASE
        await agent.report(HostPhase.RELEASED)
        await plane.leave(agent)


def block(text):
    return LogBlock(at_ms=1, text=text)


async def lines_of(plane, stream):
    page = await plane.logs.get_events(stream, from_head=True, limit=100)
    return [event.message for event in page.events]


async def test_a_reclaimed_job_is_released_and_restarted_in_one_pass(plane):
    await plane.create(num_hosts=2, **SPOT)
    await plane.passes()
    agents = await run(plane, num_hosts=2)
    await plane.hub.apply("job", RECLAIMED)
    assert (await plane.describe())["SecondaryStatus"] == "Interrupted"
    await stop(plane, agents)
    await plane.passes(2)
    assert plane.engine.released == ["job/1"]
    assert plane.engine.started == ["job/1", "job/2"]
    for agent in agents:
        with pytest.raises(WireError, match="attempt 1 of job is over"):
            await agent.report()
    await run(plane, attempt=2, num_hosts=2)
    description = await plane.describe()
    statuses = [row["Status"] for row in description["SecondaryStatusTransitions"]]
    assert " ".join(statuses) == "Starting Downloading Training Interrupted Starting Downloading Training"
    assert description["SecondaryStatusTransitions"][3]["StatusMessage"] == RECLAIMED.reason


async def test_a_later_attempt_continues_in_the_same_log_streams_and_loses_no_line(plane):
    await plane.create(**SPOT)
    await plane.passes()
    [agent] = await run(plane)
    await agent.send_logs(LogBatch(first_sequence=0, blocks=(block("first\nsecond"),)))
    await plane.hub.apply("job", RECLAIMED)
    await stop(plane, [agent])
    await plane.passes(2)
    [again] = await run(plane, attempt=2)
    batch = LogBatch(first_sequence=0, blocks=(block("third"),))
    assert (await again.send_logs(batch)).next_sequence == 1
    assert (await again.send_logs(batch)).next_sequence == 1, "sent twice, stored once"
    assert (await again.send_logs(LogBatch(first_sequence=5, blocks=(block("gap"),)))).next_sequence == 1
    job = await plane.job()
    assert await lines_of(plane, job.log_streams[0]) == ["first", "second", "third"]


async def test_a_brief_failure_of_the_log_store_delays_the_next_attempt_and_ends_no_job(plane, monkeypatch):
    await plane.create(**SPOT)
    await plane.passes()
    agents = await run(plane)
    await plane.hub.apply("job", RECLAIMED)
    await stop(plane, agents)
    ask, num_failures = plane.logs.next_sequence, 0

    async def fail_once(stream):
        nonlocal num_failures
        num_failures += 1
        if num_failures == 1:
            raise StoreError("the disk gave no answer", retryable=True)
        return await ask(stream)

    monkeypatch.setattr(plane.logs, "next_sequence", fail_once)
    await plane.passes(3)
    assert num_failures == 2
    job = await plane.job()
    assert (job.attempt, job.failure) == (2, None)


async def test_a_reclaimed_job_keeps_its_position_in_the_queue(tmp_path):
    async with ControlPlane.open(tmp_path, engine=FakeEngine()) as plane:
        await plane.create("old", num_hosts=4, **SPOT)
        plane.clock.advance(1)
        await plane.create("young", num_hosts=4)
        await plane.passes()
        agents = await run(plane, name="old", num_hosts=4)
        await plane.hub.apply("old", RECLAIMED)
        await stop(plane, agents)
        await plane.passes(2)
        assert (await plane.job("old")).attempt == 2
        assert (await plane.job("young")).attempt == 0


async def test_a_job_in_its_restart_pause_lets_other_jobs_start_first(plane):
    await plane.create("hurt", num_hosts=4, CheckpointConfig={"S3Uri": "s3://bucket/c"})
    plane.clock.advance(1)
    await plane.create("other", num_hosts=4)
    for attempt in (1, 2):
        await plane.passes(2)
        agents = await run(plane, name="hurt", attempt=attempt, num_hosts=4)
        await plane.hub.apply("hurt", events.HostLost(host="algo-4", why="algo-4 was lost: silent"))
        plane.engine.end_agent("hurt", "algo-4", attempt=attempt)
        await stop(plane, agents[:3])
    await plane.passes(2)
    hurt = await plane.job("hurt")
    assert hurt.secondary_status is SecondaryStatus.RESTARTING
    assert hurt.not_before - plane.clock.now() == timedelta(seconds=1)
    assert (await plane.job("other")).attempt == 1
    await plane.run_to_end("other", num_hosts=4)
    plane.clock.advance(2)
    await plane.passes(2)
    assert (await plane.job("hurt")).attempt == 3


@pytest.mark.parametrize("when", ["stopping", "leaving", "waiting"])
async def test_a_restarted_service_continues_to_end_an_attempt(tmp_path, when):
    clock, engine = FakeClock(), FakeEngine()
    async with ControlPlane.open(tmp_path, clock=clock, engine=engine) as plane:
        await plane.create(**SPOT)
        await plane.passes()
        [agent] = await run(plane)
        await plane.hub.apply("job", RECLAIMED)
        if when != "stopping":
            await stop(plane, [agent])
        if when == "waiting":
            plane.reconciler.is_draining = True
            await plane.passes(2)
    async with ControlPlane.open(tmp_path, clock=clock, engine=engine) as plane:
        if when == "stopping":
            agent = plane.agent()
            agent._number = 10
            await stop(plane, [agent])
        await plane.passes(3)
        assert (await plane.job()).attempt == 2
        assert engine.started == ["job/1", "job/2"]


async def test_a_job_that_waits_too_long_for_capacity_is_stopped_with_its_limit(plane):
    await plane.create("job", num_hosts=4, **SPOT)
    await plane.passes()
    agents = await run(plane, num_hosts=4)
    await plane.hub.apply("job", RECLAIMED)
    await stop(plane, agents)
    plane.reconciler.is_draining = True
    await plane.passes(2)
    plane.clock.advance(7200)
    await plane.passes()
    description = await plane.describe()
    assert (description["TrainingJobStatus"], description["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")


async def test_the_wait_limit_covers_all_attempts_of_a_retry_strategy(plane):
    limits = {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
    await plane.create("job", RetryStrategy={"MaximumRetryAttempts": 9}, StoppingCondition=limits)
    await plane.passes()
    (agent,) = await run(plane)
    plane.clock.advance(3000)
    lost = events.HostLost(host="algo-1", why="algo-1 was lost")
    await plane.hub.apply("job", lost)
    await plane.leave(agent)
    plane.reconciler.is_draining = True
    await plane.passes(2)
    assert (await plane.job()).past_attempts
    plane.clock.advance(4199)
    await plane.passes()
    assert (await plane.describe())["TrainingJobStatus"] == "InProgress"
    plane.clock.advance(1)
    await plane.passes()
    description = await plane.describe()
    assert (description["TrainingJobStatus"], description["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")


async def test_an_impossible_reclaim_is_refused_with_a_message(plane):
    await plane.create("ours")
    await plane.create("spot", num_hosts=4, **SPOT)
    for name, body, words in (
        ("ours", {}, "not on spot capacity"),
        ("spot", {}, "has no hosts now"),
        ("spot", {"grace_s": -1}, "grace_s must be 0 to 3600"),
        ("spot", [], "expected a JSON object"),
    ):
        with pytest.raises(WireError, match=words):
            await reclaim(plane.services, await plane.job(name), body)
    await plane.passes()
    await plane.stop("ours")
    await plane.passes(3)
    assert (await plane.job("spot")).attempt in (0, 1)


async def test_a_job_without_checkpoints_and_retry_strategy_is_not_restarted(plane):
    await plane.create()
    await plane.passes()
    await run(plane)
    await plane.hub.apply("job", events.HostLost(host="algo-1", why="algo-1 was lost: silent"))
    assert (await plane.job()).status is TrainingJobStatus.FAILED


async def test_a_fall_of_spot_capacity_reclaims_the_newest_job_until_the_capacity_is_back(plane):
    for name in ("older", "newer"):
        await plane.create(name, **SPOT)
        plane.clock.advance(1)
        await plane.passes()
        await run(plane, name=name)
    plane.market.set_capacity(1)
    await plane.passes()
    newer = await plane.job("newer")
    assert newer.secondary_status is SecondaryStatus.INTERRUPTED
    assert "spot capacity went down to 1 host and jobs hold 2" in newer.transitions[-1].message
    assert (await plane.job("older")).ending is None
    agent = plane.agent("newer")
    agent._number = 10
    await stop(plane, [agent])
    plane.clock.advance(1)
    await plane.passes(3)
    waiting = await plane.describe("newer")
    message = waiting["SecondaryStatusTransitions"][-1]["StatusMessage"]
    assert message.startswith("spot capacity went down to 1 host and jobs hold 2")
    assert message.endswith("; Needs 1 host of spot capacity; 0 of 1 are free: older holds 1.")
    plane.market.set_capacity(None)
    await plane.passes()
    assert (await plane.job("newer")).attempt == 2


async def test_a_job_that_waits_for_spot_capacity_lets_other_jobs_start_first(plane):
    plane.market.set_capacity(0)
    await plane.create("spot", **SPOT)
    plane.clock.advance(1)
    await plane.create("ours")
    await plane.passes()
    assert (await plane.job("ours")).attempt == 1
    assert (await plane.job("spot")).attempt == 0
    assert plane.market.facts().capacity == 0


async def test_a_schedule_sets_the_spot_capacity(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        schedule = parse_schedule("0 1\n60 0\n120 2\n", source="test")
        plane.reconciler._market = market = SpotMarket(plane.hub, plane.clock, schedule)
        plane.admission._market = market
        await plane.create(**SPOT)
        await plane.passes()
        agents = await run(plane)
        assert market.facts().next_change_s == 60
        plane.clock.advance(61)
        await agents[0].report()
        await plane.passes()
        assert (await plane.job()).secondary_status is SecondaryStatus.INTERRUPTED
        await stop(plane, agents)
        await plane.passes(2)
        assert (await plane.job()).attempt == 1
        plane.clock.advance(60)
        await plane.passes()
        assert (await plane.job()).attempt == 2
