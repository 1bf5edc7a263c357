"""Reclaims over HTTP: bodies that are refused, and jobs whose attempt is already ending."""

import pytest

from clary.base.errors import WireError
from clary.contract.agent_protocol import HostPhase
from clary.control.jobs import events
from clary.control.server.actions.spot_actions import reclaim
from clary.testing.control_plane import ControlPlane

SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
    "RetryStrategy": {"MaximumRetryAttempts": 2},
}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2, **SPOT)
        await plane.passes()
        for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
            for host in ("algo-1", "algo-2"):
                await plane.agent("job", host).report(phase)
        yield plane


async def reclaimed(plane, **body):
    return await reclaim(plane.services, await plane.job(), body)


async def test_a_repeated_reclaim_of_the_same_host_succeeds_again(plane):
    first = await reclaimed(plane, host="algo-2")
    assert first == {"name": "job", "attempt": 1, "reason": "The spot capacity of algo-2 was reclaimed"}
    assert await reclaimed(plane, host="algo-2") == first


@pytest.mark.parametrize("host", [["algo-1"], {"a": 1}, 7, True])
async def test_a_host_that_is_no_text_is_refused(plane, host):
    with pytest.raises(WireError, match="host must be one of algo-1, algo-2") as told:
        await reclaimed(plane, host=host)
    assert told.value.http_status == 400


async def test_a_reclaim_of_an_attempt_that_is_already_ending_is_refused(plane):
    await plane.hub.apply("job", events.Reclaimed(reason="a fall of capacity", grace_s=5))
    with pytest.raises(WireError, match="job is already ending: a fall of capacity"):
        await reclaimed(plane, host="algo-2")
    assert (await plane.job()).ending.reason == "a fall of capacity"
