"""Tokens of pools whose hosts are other machines, and the silence of pools' agents."""

import asyncio
from types import SimpleNamespace

import pytest

from clary.base.clock import SystemClock
from clary.base.errors import WireError
from clary.control.engines.cluster.enrolments import host_token
from clary.control.reconcile import pool_keeping
from clary.control.reconcile.gateways.pool_gateway import PoolGateway
from clary.testing.control_plane import ControlPlane

RESOURCES = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1, "KeepAlivePeriodInSeconds": 60}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as opened:
        yield opened


async def test_a_node_that_was_given_up_gets_no_further_attempt_of_its_pool(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    await plane.passes()
    job = plane.hub.live_job("one")
    held, over = {(job.pool, 0): "first"}, set()
    claims = SimpleNamespace(claim_of=lambda *place: held.get(place, ""), given_up=lambda pool: frozenset(over))
    gateway = PoolGateway(plane.hub, SystemClock(), pool_token=plane.pool_gateway.token_of, claims=claims)
    own, after = host_token(job.plan["pool_token"], "first"), f"one:{job.attempt}"
    gateway.authorize(job.pool, own, "algo-1")
    wrong = ((job.plan["pool_token"], "algo-1"), (own, "algo-2"), (own, ""), (own, "algo-0"), ("", "algo-1"))
    for token, host in wrong:
        with pytest.raises(WireError) as refused:
            gateway.authorize(job.pool, token, host)
        assert refused.value.http_status == 403
    waiting = asyncio.ensure_future(gateway.next_assignment(job.pool, "algo-1", after=after, wait_s=20, token=own))
    await asyncio.sleep(0.05)
    held[job.pool, 0] = "second"  # another node has taken over this number, and is about to get the next attempt
    over.add("first")
    gateway.wake(job.pool)
    with pytest.raises(WireError, match="goes on without this node") as told:
        await waiting
    assert told.value.http_status == 410  # an agent exits at this status
    gateway.authorize(job.pool, host_token(job.plan["pool_token"], "second"), "algo-1")
    held.clear()
    with pytest.raises(WireError, match="goes on without this node"):
        gateway.authorize(job.pool, own, "algo-1")


async def test_a_pause_of_the_service_does_not_count_as_silence_of_a_pools_agents(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    await plane.passes()
    job = plane.hub.live_job("one")
    await plane.pool_gateway.next_assignment(job.pool, "algo-1", after="", wait_s=0)
    listening = asyncio.create_task(plane.gateway.keep_listening())
    await asyncio.sleep(0)
    plane.clock.advance(pool_keeping.SILENT_S + 10)  # the event loop did not run in these seconds
    assert plane.pool_gateway.silent_s(job.pool, "algo-1") < 1
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    plane.clock.advance(pool_keeping.SILENT_S)
    assert plane.pool_gateway.silent_s(job.pool, "algo-1") > pool_keeping.SILENT_S


async def test_silence_of_a_pools_agents_counts_from_the_moment_at_which_the_service_listens(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    await plane.passes()
    job = plane.hub.live_job("one")
    await plane.pool_gateway.next_assignment(job.pool, "algo-1", after="", wait_s=0)
    plane.clock.advance(30)  # the remaining time of a slow start
    listening = asyncio.create_task(plane.gateway.keep_listening())
    await asyncio.sleep(0)
    assert [plane.pool_gateway.silent_s(job.pool, host) for host in ("algo-1", "algo-2")] == [0.0, 0.0]
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
