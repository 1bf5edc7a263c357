"""The wall clock is set while jobs live: deadlines and bills keep their seconds, and no job ends for it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from clary.base import clock as clock_module
from clary.base.clock import ClockAnchor
from clary.contract.agent_protocol import HostPhase
from clary.contract.statuses import WarmPoolStatus
from clary.contract.stop_limits import STOP_ALLOWANCE_S
from clary.control.jobs import warm_pools
from clary.control.server.job_keys import JobKeys
from clary.control.server.pages.jobs_page import jobs_page
from clary.control.state_folder import RootSecrets
from clary.testing.control_plane import LIMITS, ControlPlane, FakeAgent
from clary.testing.fake_clock import START, FakeClock

DAY_S = 86_400.0
STEPS = [60.0, 3600.0, DAY_S, -60.0, -3600.0, -DAY_S]
SPOT = {"EnableManagedSpotTraining": True, "CheckpointConfig": {"S3Uri": "s3://bucket/kept"}}

pytestmark = pytest.mark.parametrize("step_s", STEPS)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


def step(clock: FakeClock, seconds: float) -> None:
    clock.set_time_of_day(clock.now() + timedelta(seconds=seconds))


async def running(plane: ControlPlane, **members: object) -> FakeAgent:
    await plane.create(**members)
    await plane.passes()
    agent = plane.agent()
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        await agent.report(phase)
    return agent


async def pass_time(plane: ControlPlane, seconds: float) -> None:
    """Advance the clock while the only agent keeps reporting."""
    plane.clock.advance(seconds)
    await plane.agent().report()
    await plane.passes()


async def status(plane: ControlPlane) -> str:
    return str((await plane.describe())["SecondaryStatus"])


async def test_max_runtime_keeps_its_length(plane: ControlPlane, step_s: float) -> None:
    await running(plane, StoppingCondition={"MaxRuntimeInSeconds": 100})
    step(plane.clock, step_s)
    await pass_time(plane, 99)
    assert await status(plane) == "Training"
    await pass_time(plane, 2)
    assert (await plane.job()).end_cause is not None


@pytest.mark.parametrize(
    ("limit", "more"), [("MaxWaitTimeInSeconds", SPOT), ("MaxPendingTimeInSeconds", {})], ids=["wait", "pending"]
)
async def test_the_limit_on_waiting_keeps_its_length(
    plane: ControlPlane, step_s: float, limit: str, more: dict[str, object]
) -> None:
    condition = {"MaxRuntimeInSeconds": 7200, limit: 7300}
    plane.market.set_capacity(0)
    plane.engine.launch_errors = []
    await plane.create("blocker", num_hosts=4)
    await plane.passes()
    await plane.create(StoppingCondition=condition, **more)
    step(plane.clock, step_s)
    plane.clock.advance(7290)
    await plane.passes()
    assert (await plane.describe())["TrainingJobStatus"] == "InProgress"
    plane.clock.advance(20)
    await plane.passes()
    assert (await plane.describe())["TrainingJobStatus"] == "Stopped"


async def test_a_host_that_died_before_its_peer_failed_is_the_cause_whatever_the_clock_shows(
    plane: ControlPlane, step_s: float
) -> None:
    await plane.create(num_hosts=2, CheckpointConfig={"S3Uri": "s3://bucket/kept"})
    await plane.passes()
    survivor, silent = (plane.agent("job", f"algo-{number}") for number in (1, 2))
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        for agent in (survivor, silent):
            await agent.report(phase)
    plane.clock.advance(0.9)
    await silent.report()  # the last sign of this host
    step(plane.clock, step_s)
    plane.clock.advance(0.5)
    await survivor.report(HostPhase.EXITED, exits=(plane.exit_of(1),))
    plane.clock.advance(LIMITS.host_timeout_s)
    await survivor.report()
    await plane.passes()
    ending = (await plane.job()).ending
    assert ending is not None
    assert ending.failure is not None
    assert ending.failure.host == "algo-2"


async def test_the_list_shows_the_true_duration_of_a_job(plane: ControlPlane, step_s: float) -> None:
    await running(plane)
    await pass_time(plane, 50)
    step(plane.clock, step_s)
    await pass_time(plane, 30)
    (listed,) = (await jobs_page(plane.services, {}))["jobs"]
    assert 79 <= listed["duration_s"] <= 81


async def test_the_bill_counts_the_true_seconds(plane: ControlPlane, step_s: float) -> None:
    agent = await running(plane)
    await pass_time(plane, 50)
    step(plane.clock, step_s)
    await pass_time(plane, 50)
    plane.clock.advance(10)
    for phase in (HostPhase.EXITED, HostPhase.DONE):
        await agent.report(phase, exits=(plane.exit_of(0),), uploaded=agent.model_uris(phase))
    facts = await plane.describe()
    assert facts["TrainingJobStatus"] == "Completed"
    assert (facts["TrainingTimeInSeconds"], facts["BillableTimeInSeconds"]) == (110, 110)
    assert facts["CreationTime"] == START


async def test_the_grace_time_of_a_stop_keeps_its_length(plane: ControlPlane, step_s: float) -> None:
    await running(plane)
    await plane.stop()
    step(plane.clock, step_s)
    await pass_time(plane, 120 + STOP_ALLOWANCE_S - 1)
    assert (await plane.describe())["TrainingJobStatus"] == "Stopping"
    await pass_time(plane, 2)
    assert (await plane.describe())["TrainingJobStatus"] in ("Stopped", "Failed")


async def test_a_restart_of_the_service_loses_no_second_of_the_runtime(tmp_path: Path, step_s: float) -> None:
    clock = FakeClock()
    async with ControlPlane.open(tmp_path, clock=clock) as plane:
        await running(plane, StoppingCondition={"MaxRuntimeInSeconds": 100})
        engine = plane.engine
        await pass_time(plane, 60)
    step(clock, step_s)
    async with ControlPlane.open(tmp_path, clock=clock, engine=engine) as plane:
        await pass_time(plane, 39)
        assert await status(plane) == "Training"
        await pass_time(plane, 2)
        assert (await plane.job()).end_cause is not None


async def test_times_never_decrease_after_a_boot_of_the_machine(
    tmp_path: Path, step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    async with ControlPlane.open(tmp_path, clock=clock) as plane:
        await running(plane)
        before = (await plane.job()).modified_at
    step(clock, step_s)
    monkeypatch.setattr(clock_module, "boot_id", lambda: "another boot")
    async with ControlPlane.open(tmp_path, clock=clock) as plane:
        job = await plane.job()
        assert job.anchor is not None
        assert job.anchor.holds
        assert plane.hub.now_of(job) == max(before, clock.now())
        other = replace(job, anchor=ClockAnchor(boot_id="a third", monotonic_s=0, wall=START))
        assert plane.hub.now_of(other) == clock.now()


async def test_the_keep_alive_period_of_a_warm_pool_keeps_its_length(plane: ControlPlane, step_s: float) -> None:
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
    await plane.create(ResourceConfig={**resources, "KeepAlivePeriodInSeconds": 600})
    await plane.passes()
    agent = plane.agent()
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING, HostPhase.EXITED, HostPhase.DONE):
        await agent.report(phase, exits=(plane.exit_of(0),), uploaded=agent.model_uris(phase))
    job = await plane.job()
    assert job.warm_pool is not None
    assert job.warm_pool.status is WarmPoolStatus.AVAILABLE
    step(plane.clock, step_s)
    for seconds, is_over in ((599, False), (2, True)):
        plane.clock.advance(seconds)
        assert bool(warm_pools.why_over(job, now=plane.hub.now_of(job))) == is_over


async def test_the_upload_timeout_keeps_its_length(plane: ControlPlane, step_s: float) -> None:
    agent = await running(plane)
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await plane.passes()
    assert await status(plane) == "Uploading"
    step(plane.clock, step_s)
    await pass_time(plane, LIMITS.upload_timeout_s - 1)
    assert (await plane.describe())["TrainingJobStatus"] == "InProgress"
    await pass_time(plane, 2)
    assert (await plane.describe())["TrainingJobStatus"] == "Failed"


async def test_the_limit_on_a_host_s_silence_keeps_its_length(plane: ControlPlane, step_s: float) -> None:
    agent = await running(plane)
    step(plane.clock, step_s)
    await plane.passes()
    await agent.report()
    plane.clock.advance(LIMITS.host_timeout_s - 0.1)
    await plane.passes()
    assert await status(plane) == "Training"
    plane.clock.advance(0.2)
    await plane.passes()
    assert "silent" in (await plane.describe())["FailureReason"]


async def test_the_launch_timeout_keeps_its_length(plane: ControlPlane, step_s: float) -> None:
    await plane.create()
    await plane.passes()
    step(plane.clock, step_s)
    for seconds, phase in ((LIMITS.launch_timeout_s - 1, HostPhase.LAUNCHING), (2, HostPhase.LOST)):
        plane.clock.advance(seconds)
        await plane.passes()
        assert (await plane.job()).hosts["algo-1"].facts.phase is phase


async def test_a_job_keeps_its_keys_and_its_agents_keep_their_token(plane: ControlPlane, step_s: float) -> None:
    agent = await running(plane)
    secrets = RootSecrets(access_key_id="K", secret_access_key="S", admin_token="A", master_key="M")
    keys = JobKeys(secrets, plane.hub, plane.settings)
    key = (agent.authorize().plan or {})["job_endpoint"]["credentials"]["access_key_id"]
    step(plane.clock, step_s)
    await pass_time(plane, 1)
    assert keys.find_secret(key) == secrets.job_secret(key)
    assert agent.authorize().name == "job"
    for phase in (HostPhase.EXITED, HostPhase.DONE):
        await agent.report(phase, exits=(plane.exit_of(0),), uploaded=agent.model_uris(phase))
    await plane.leave(agent)
    await plane.passes()
    assert keys.find_secret(key) is None
