"""DescribeTrainingJob of spot jobs: training seconds and billed seconds."""

import pytest

from clary.contract.agent_protocol import HostPhase
from clary.control.jobs import events
from clary.testing.control_plane import ControlPlane

SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


async def begin(plane, *, seconds):
    """Advance the job's only host until its program runs, then advance the clock."""
    await plane.passes()
    agent = plane.agent(attempt=plane.hub.live_job("job").attempt)
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        await agent.report(phase)
    plane.clock.advance(seconds)
    return agent


async def finish(plane, agent):
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.DONE, exits=(plane.exit_of(0),), uploaded=agent.model_uris(HostPhase.DONE))


async def test_a_spot_job_is_billed_by_the_spot_fraction_of_its_type(plane):
    await plane.create(**SPOT)
    await finish(plane, await begin(plane, seconds=1000))
    answer = await plane.describe()
    fraction = plane.services.prices.types["ml.m5.large"].spot_fraction
    assert answer["TrainingTimeInSeconds"] == 1000
    assert answer["BillableTimeInSeconds"] == round(1000 * fraction) < 1000


async def test_time_without_hosts_between_two_attempts_is_neither_trained_nor_billed(plane):
    await plane.create(**SPOT)
    agent = await begin(plane, seconds=100)
    await plane.hub.apply("job", events.Reclaimed(reason="gone", grace_s=1))
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(1),))
    await plane.hub.apply("job", events.Released())
    assert "TrainingTimeInSeconds" not in await plane.describe(), "the job has not ended"
    plane.clock.advance(5000)
    await finish(plane, await begin(plane, seconds=200))
    answer = await plane.describe()
    assert answer["TrainingTimeInSeconds"] == 300
    assert (answer["TrainingEndTime"] - answer["TrainingStartTime"]).total_seconds() == 5300


async def test_a_job_on_demand_is_billed_in_full(plane):
    await plane.create()
    await finish(plane, await begin(plane, seconds=1000))
    answer = await plane.describe()
    assert answer["TrainingTimeInSeconds"] == answer["BillableTimeInSeconds"] == 1000
