"""Warm pools through the reconciler and the gateway, with agents that a test drives."""

from dataclasses import replace
from datetime import timedelta

import pytest

from clary.base.errors import EngineError, WireError
from clary.contract.agent_protocol import HostPhase
from clary.control.jobs import events
from clary.control.jobs.job_request import JobRequest
from clary.control.scheduling.catalogue import GIB
from clary.control.scheduling.machine import Machine
from clary.control.scheduling.placement import Place, Wait
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_engine import FakeEngine

RESOURCES = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1, "KeepAlivePeriodInSeconds": 60}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as opened:
        yield opened


async def status_of(plane, name):
    return (await plane.describe(name)).get("WarmPoolStatus", {})


async def serve(plane, name, *, after="", exit_code=0):
    """Have a pool's host run a job to its end and return to the pool; return the name of the pool."""
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


async def test_hosts_run_one_job_after_the_other_without_a_new_launch(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await plane.create("two", ResourceConfig=RESOURCES)
    await plane.passes()
    assert plane.hub.live_job("two").attempt == 0, "the hosts are still being put in order: nothing is launched beside"
    reason = "The hosts of the warm pool that one left are being put in order."
    assert (await plane.describe("two"))["SecondaryStatusTransitions"][-1]["StatusMessage"] == reason
    await plane.create("three", ResourceConfig=RESOURCES)
    assert plane.admission.pending_reason(await plane.job("three")).startswith("First come, first served")
    await plane.stop("three")
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


async def test_a_job_without_a_keep_alive_period_takes_a_pool_and_ends_it(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await come_back(plane, "one", pool)
    await plane.create("two", ResourceConfig={**RESOURCES, "KeepAlivePeriodInSeconds": 0})
    assert await serve(plane, "two", after="one:1") == pool
    await come_back(plane, "two", pool)
    assert plane.engine.released_pools == [pool]
    assert (await status_of(plane, "two"))["Status"] == "Terminated"


async def test_hosts_that_do_not_return_to_the_pool_are_released(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await plane.passes()
    plane.clock.advance(11)
    await plane.passes(2)
    assert plane.engine.released_pools == [pool]
    assert (await status_of(plane, "one"))["Status"] == "Terminated"


async def test_an_idle_pool_whose_agent_dies_ends_and_a_failed_release_is_retried(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await come_back(plane, "one", pool)
    plane.engine.end_pool_agent(pool, "algo-1")
    plane.engine.release_errors.append(EngineError("busy", retryable=True))
    await plane.passes(2)
    assert (await status_of(plane, "one"))["Status"] == "Terminated", "nobody can have its hosts any more"
    assert not (await plane.job("one")).is_released
    plane.clock.advance(3)
    await plane.passes(2)
    assert plane.engine.released_pools == [pool, pool]
    assert (await plane.job("one")).is_released


async def test_a_service_killed_between_taking_a_pool_and_recording_it_records_it_later(tmp_path):
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


async def test_a_job_that_is_created_while_a_pool_is_being_ended_gets_new_hosts(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await come_back(plane, "one", pool)
    keep_alive = {"KeepAlivePeriodInSeconds": 0}
    await plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="one", ResourceConfig=keep_alive)
    await plane.passes()
    await plane.create("two", ResourceConfig=RESOURCES)
    await plane.passes(2)
    assert plane.hub.live_job("two").pool not in ("", pool)
    assert plane.engine.released_pools == [pool]
    with pytest.raises(WireError, match="has a warm pool in status Terminated"):
        await plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="one", ResourceConfig=keep_alive)


async def test_hosts_of_a_restartable_job_cannot_be_kept_by_an_update_and_end_with_the_job(plane):
    await plane.create("job", CheckpointConfig={"S3Uri": "s3://bucket/c"})
    pool = await serve(plane, "job")
    keep_alive = {"KeepAlivePeriodInSeconds": 60}
    with pytest.raises(WireError, match="has no warm pool"):
        await plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="job", ResourceConfig=keep_alive)
    await come_back(plane, "job", pool)
    assert plane.engine.released_pools == [pool]
    assert (await plane.job("job")).is_released
    assert await status_of(plane, "job") == {}


async def test_a_restarted_job_with_its_own_hosts_starts_before_an_older_job_that_waits(plane):
    await plane.create("old", num_hosts=4)
    await plane.hub.update("old", lambda job: replace(job, not_before=plane.clock.now() + timedelta(seconds=60)))
    plane.clock.advance(1)
    await plane.create("young", num_hosts=2, CheckpointConfig={"S3Uri": "s3://bucket/c"})
    await plane.passes()
    agents = [plane.agent("young", f"algo-{number}") for number in (1, 2)]
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        for agent in agents:
            await agent.report(phase)
    plane.clock.advance(60)
    await plane.hub.apply("young", events.HostLost(host="algo-2", why="algo-2 was lost: test"))
    await agents[0].report(HostPhase.EXITED, exits=(replace(plane.exit_of(143), is_consequence=True),))
    await agents[0].report(HostPhase.RELEASED)
    await plane.leave(agents[0])
    await plane.passes(3)
    assert plane.hub.live_job("young").attempt == 2
    assert plane.hub.live_job("old").attempt == 0


async def lose_second_host(plane, name):
    """Let the second of two hosts be lost and the first return to the pool; the job waits for its restart."""
    agents = [plane.agent(name, f"algo-{number}") for number in (1, 2)]
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        for agent in agents:
            await agent.report(phase)
    await plane.hub.apply(name, events.HostLost(host="algo-2", why="algo-2 was lost: test"))
    await agents[0].report(HostPhase.EXITED, exits=(replace(plane.exit_of(143), is_consequence=True),))
    await agents[0].report(HostPhase.RELEASED)
    await plane.leave(agents[0])
    plane.reconciler.is_draining = True  # no job starts in these passes
    await plane.passes(3)
    assert not plane.hub.live_job(name).hosts


async def test_gpus_of_a_job_that_waits_for_its_restart_are_given_to_no_other_job(tmp_path):
    machine = Machine(num_cpus=8, memory_bytes=8 * GIB, num_gpus=3)
    async with ControlPlane.open(tmp_path, engine=FakeEngine(machine)) as plane:
        resources = {"InstanceType": "ml.g4dn.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1}
        await plane.create("hurt", ResourceConfig=resources, CheckpointConfig={"S3Uri": "s3://bucket/c"})
        await plane.passes()
        assert plane.hub.live_job("hurt").held_gpus == (0, 1)
        await plane.create("other", ResourceConfig=resources)
        await lose_second_host(plane, "hurt")
        hurt, other = plane.hub.live_job("hurt"), plane.hub.live_job("other")
        assert (hurt.pool != "", hurt.held_gpus) == (True, (0, 1))
        decision = plane.admission.decide_next(other, plane.admission.mapping(JobRequest(other.request)))
        assert decision == Wait(reason="Needs 2 GPUs; 1 of 3 GPUs is free: hurt holds 2.")
        await plane.reconciler.give_pools_back()
        assert plane.hub.live_job("hurt").held_gpus == ()
        decision = plane.admission.decide_next(other, plane.admission.mapping(JobRequest(other.request)))
        assert decision == Place(gpus=((0,), (1,)))


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_gpus_of_a_kept_pool_go_to_the_next_attempt_or_become_free(tmp_path, is_stopped):
    machine = Machine(num_cpus=8, memory_bytes=8 * GIB, num_gpus=2)
    async with ControlPlane.open(tmp_path, engine=FakeEngine(machine)) as plane:
        resources = {"InstanceType": "ml.g4dn.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1}
        await plane.create("hurt", ResourceConfig=resources, CheckpointConfig={"S3Uri": "s3://bucket/c"})
        await plane.passes()
        await lose_second_host(plane, "hurt")
        plane.reconciler.is_draining = False
        if is_stopped:
            await plane.stop("hurt")
            plane.clock.advance(11)
        await plane.passes(3)
        job = await plane.job("hurt")
        assert (job.pool_gpus, job.held_gpus) == ((), () if is_stopped else (0, 1))
        assert job.attempt == (1 if is_stopped else 2)


async def test_a_release_that_keeps_failing_does_not_block_other_jobs_for_long(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    plane.engine.release_errors += [EngineError("busy", retryable=True)] * 50
    await plane.pool_gateway.next_assignment(pool, "algo-1", after="one:1", wait_s=0)
    await plane.create("two", ResourceConfig=RESOURCES)
    for _ in range(10):
        plane.clock.advance(3)
        await plane.passes()
    assert plane.hub.live_job("two").attempt == 1


async def test_an_idle_host_that_stops_polling_ends_its_pool(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    await come_back(plane, "one", pool)
    plane.clock.advance(29)
    await plane.passes(2)
    assert plane.engine.released_pools == []
    plane.clock.advance(2)
    await plane.passes(2)
    assert plane.engine.released_pools == [pool]
    assert "has not asked for work" in (await plane.job("one")).warm_pool.reason


async def test_the_token_of_one_pool_gives_no_access_to_another(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    await plane.passes()
    pool = plane.hub.live_job("one").pool
    token = plane.hub.live_job("one").plan["pool_token"]
    plane.pool_gateway.authorize(pool, token)
    with pytest.raises(WireError, match="does not open"):
        plane.pool_gateway.authorize("pool_000000000000", token)
    with pytest.raises(WireError, match="does not open"):
        plane.pool_gateway.authorize(pool, plane.hub.live_job("one").plan["agent_token"])


async def test_a_pool_whose_agent_ends_with_the_job_is_not_waited_for(plane):
    await plane.create("one", ResourceConfig=RESOURCES)
    pool = await serve(plane, "one")
    plane.engine.end_pool_agent(pool, "algo-1")
    await plane.passes(2)
    assert plane.engine.released_pools == [pool]


async def test_kept_hosts_are_released_for_a_job_that_waits_for_their_memory(tmp_path):
    machine = Machine(num_cpus=8, memory_bytes=16 * GIB)
    async with ControlPlane.open(tmp_path, engine=FakeEngine(machine)) as plane:
        await plane.create("kept", ResourceConfig=RESOURCES)
        pool = await serve(plane, "kept")
        large = {"InstanceType": "ml.p3.2xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1}
        await plane.create("large", ResourceConfig=large)
        reason = plane.admission.pending_reason(await plane.job("large"))
        assert reason.startswith("Needs 14.4 GiB of memory for 1 host of ml.p3.2xlarge; 6.4 GiB of 14.4 GiB are free: ")
        assert "kept holds 8 GiB. To run more at once, settings.toml can" in reason
        await come_back(plane, "kept", pool)
        assert (await status_of(plane, "kept"))["Status"] == "Terminated"
        await plane.passes()
        assert plane.engine.released_pools == [pool]
        assert plane.hub.live_job("large").attempt == 1
