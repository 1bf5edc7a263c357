"""Warm pools through the reconciler and the gateway, with agents that a test drives."""

import pytest

from clary.contract.agent_protocol import HostPhase
from clary.contract.errors import EngineError, WireError
from clary.testing.control_plane import ControlPlane

RESOURCES = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1, "KeepAlivePeriodInSeconds": 60}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as opened:
        yield opened


async def status_of(plane, name):
    return (await plane.describe(name)).get("WarmPoolStatus", {})


async def serve(plane, name, *, after="", exit_code=0):
    """Let the host of a pool take a job, live through it and come back; returns the pool."""
    await plane.passes()
    pool = plane.hub.live_job(name).pool
    found = await plane.pool_gateway.next_assignment(pool, "algo-1", after=after, wait_s=0)
    assert (found.job, found.attempt) == (name, 1)
    agent = plane.agent(name)
    assert agent.token == found.token
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        await agent.report(phase)
    for phase in (HostPhase.EXITED, HostPhase.DONE):
        await agent.report(phase, exits=(plane.exit_of(exit_code),), uploaded=agent.model_uris(phase))
    return pool


async def come_back(plane, name, pool):
    assert await plane.pool_gateway.next_assignment(pool, "algo-1", after=f"{name}:1", wait_s=0) is None
    await plane.passes(2)


async def test_hosts_serve_one_job_after_the_other_without_being_launched_again(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await plane.create("two", ResourceConfig=RESOURCES)
    await plane.passes()
    assert plane.hub.live_job("two").attempt == 0, "the hosts are still being put in order: nothing is launched beside"
    await come_back(plane, "one", pool)
    assert await serve(plane, "two", after="one:1") == pool
    assert (await status_of(plane, "one"))["ReusedByJob"] == "two"
    assert plane.engine.released == ["one/1"]
    assert plane.engine.released_pools == []
    await come_back(plane, "two", pool)
    plane.clock.advance(61)
    await plane.passes(2)
    assert plane.engine.released_pools == [pool]
    assert (await status_of(plane, "two"))["Status"] == "Terminated"
    with pytest.raises(WireError, match="has ended"):
        await plane.pool_gateway.next_assignment(pool, "algo-1", after="two:1", wait_s=0)


async def test_a_job_without_a_period_takes_a_pool_and_uses_it_up(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await come_back(plane, "one", pool)
    await plane.create("two", ResourceConfig={**RESOURCES, "KeepAlivePeriodInSeconds": 0})
    assert await serve(plane, "two", after="one:1") == pool
    await come_back(plane, "two", pool)
    assert plane.engine.released_pools == [pool]
    assert (await status_of(plane, "two"))["Status"] == "Terminated"


async def test_hosts_that_do_not_come_back_are_taken_back(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await plane.passes()
    plane.clock.advance(11)
    await plane.passes(2)
    assert plane.engine.released_pools == [pool]
    assert (await status_of(plane, "one"))["Status"] == "Terminated"


async def test_an_idle_pool_whose_agent_dies_ends_and_a_release_that_fails_is_tried_again(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await come_back(plane, "one", pool)
    plane.engine.end_pool_agent(pool, "algo-1")
    plane.engine.release_errors.append(EngineError("busy", retryable=True))
    await plane.passes()
    assert (await status_of(plane, "one"))["Status"] == "Available", "its hosts are not gone yet"
    await plane.passes()
    assert plane.engine.released_pools == [pool, pool]
    assert (await status_of(plane, "one"))["Status"] == "Terminated"


async def test_a_service_killed_between_taking_a_pool_and_saying_so_says_so_later(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create("one", ResourceConfig=RESOURCES)
        pool = await serve(plane, "one")
        await come_back(plane, "one", pool)
        await plane.create("two", ResourceConfig=RESOURCES)
        apply = plane.hub.apply

        async def dying(name, event):
            if name == "one":
                raise OSError("killed here")
            return await apply(name, event)

        plane.hub.apply = dying
        await plane.passes()
        assert plane.hub.live_job("two").pool == plane.hub.live_job("one").pool == pool
        clock, engine = plane.clock, plane.engine
    async with ControlPlane.open(tmp_path, clock=clock, engine=engine) as plane:
        await plane.passes(2)
        assert (await status_of(plane, "one"))["ReusedByJob"] == "two"
        found = await plane.pool_gateway.next_assignment(pool, "algo-1", after="one:1", wait_s=0)
        assert found.job == "two"


async def test_the_token_of_one_pool_opens_no_other(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    await plane.passes()
    pool = plane.hub.live_job("one").pool
    token = plane.hub.live_job("one").plan["pool_token"]
    plane.pool_gateway.authorize(pool, token)
    with pytest.raises(WireError, match="does not open"):
        plane.pool_gateway.authorize("pool_000000000000", token)
    with pytest.raises(WireError, match="does not open"):
        plane.pool_gateway.authorize(pool, plane.hub.live_job("one").plan["agent_token"])
