"""Tokens of pools whose hosts are other machines: a pool that has given up a node serves that node no more."""

import asyncio
from types import SimpleNamespace

import pytest

from clary.base.clock import SystemClock
from clary.base.errors import WireError
from clary.control.engines.cluster.enrolments import host_token
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
