"""A rank that catches a peer's error and exits with a code hides neither a lost host nor a broken link."""

from dataclasses import replace

import pytest

from clary.contract.agent_protocol import HostPhase
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import deadlines
from clary.control.jobs.training_job import AttemptEnd
from clary.testing.control_plane import LIMITS, ControlPlane

CHECKPOINTS = {"CheckpointConfig": {"S3Uri": "s3://bucket/c"}}  # a job with checkpoints is restarted


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as opened:
        yield opened


async def running(plane):
    await plane.create(num_hosts=2, **CHECKPOINTS)
    await plane.passes()
    agents = [plane.agent("job", f"algo-{number}") for number in (1, 2)]
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        for agent in agents:
            await agent.report(phase)
    await plane.passes()
    return agents


async def leave(plane, agent, *, by_itself):
    """Let a host's program end with exit code 1, on its own or after an order to stop."""
    await agent.report(HostPhase.EXITED, exits=(replace(plane.exit_of(1), is_consequence=not by_itself),))


async def test_an_exit_code_before_the_loss_of_the_dead_agent_is_known_restarts_the_job(plane):
    survivor, _dead = await running(plane)
    plane.clock.advance(0.2)
    plane.engine.end_pool_agent((await plane.job()).pool, "algo-2")
    plane.clock.advance(0.1)
    await leave(plane, survivor, by_itself=True)
    plane.clock.advance(0.2)
    await plane.passes()
    job = await plane.job()
    assert job.secondary_status is SecondaryStatus.RESTARTING
    assert "algo-2 was lost: its agent ended" in job.ending.reason


async def test_an_exit_code_before_a_silent_host_is_declared_lost_restarts_the_job(plane):
    survivor, silent = await running(plane)
    plane.clock.advance(0.9)
    await silent.report()
    plane.clock.advance(0.5)
    await leave(plane, survivor, by_itself=True)
    plane.clock.advance(LIMITS.host_timeout_s)
    await survivor.report()
    await plane.passes()
    ending = (await plane.job()).ending
    assert (ending.kind, ending.failure.host) == (AttemptEnd.RESTARTED, "algo-2")


async def test_a_host_whose_peer_has_failed_is_declared_lost_after_a_shorter_silence(plane):
    survivor, _silent = await running(plane)
    await leave(plane, survivor, by_itself=True)
    plane.clock.advance(deadlines.LEAST_SILENCE_S - 0.1)
    await survivor.report()
    await plane.passes()
    assert (await plane.job()).ending is None
    plane.clock.advance(0.2)
    await plane.passes()
    ending = (await plane.job()).ending
    assert (ending.kind, ending.failure.host) == (AttemptEnd.RESTARTED, "algo-2")
    assert (
        "has been silent for 3.1 s (limit 3 s, less after its peer's failure; setting host_timeout_s)" in ending.reason
    )


async def test_a_host_may_be_silent_for_the_whole_limit_while_its_peers_train(plane):
    peer, _silent = await running(plane)
    plane.clock.advance(LIMITS.host_timeout_s - 0.1)
    await peer.report()
    await plane.passes()
    assert (await plane.job()).end_cause is None


async def test_a_job_is_restarted_if_an_exit_code_arrives_before_the_cut_link_is_noticed(plane):
    """Both agents live and obey, so both programs have ended long before two seconds have passed without a frame."""
    first, second = await running(plane)
    await leave(plane, first, by_itself=True)
    await leave(plane, second, by_itself=False)
    plane.clock.advance(2)
    await plane.passes()
    assert (await plane.job()).ending is None
    plane.engine.cut_off_hosts["algo-2"] = "its link is dead"
    await plane.passes()
    ending = (await plane.job()).ending
    assert (ending.kind, ending.failure.message) == (AttemptEnd.RESTARTED, "algo-2 was lost: its link is dead")
    pool = (await plane.job()).pool
    for agent in (first, second):
        await agent.report(HostPhase.RELEASED)
        await plane.leave(agent)
    await plane.passes(2)
    assert (await plane.job()).past_attempts[0].failure.fault == "infrastructure"
    assert plane.engine.released_pools == [pool], "hosts behind a dead link serve no other attempt"


async def test_a_job_whose_rank_exited_on_its_own_fails_when_no_loss_is_found_in_time(plane):
    first, second = await running(plane)
    await leave(plane, first, by_itself=True)
    await leave(plane, second, by_itself=False)
    for _ in range(3):
        plane.clock.advance(LIMITS.host_timeout_s / 3)
        for agent in (first, second):
            await agent.report()
        await plane.passes()
    assert (await plane.job()).has_all_evidence
    for agent in (second, first):
        await agent.report(HostPhase.DONE)
    job = await plane.job()
    assert (job.status, job.failure.fault, job.failure.exit_code) == (TrainingJobStatus.FAILED, "algorithm", 1)


async def test_a_restarted_service_still_waits_for_evidence_and_uses_the_recorded_last_sign(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        survivor, _dead = await running(plane)
        await leave(plane, survivor, by_itself=True)
        clock, engine = plane.clock, plane.engine
        engine.end_pool_agent((await plane.job()).pool, "algo-2")
    async with ControlPlane.open(tmp_path, clock=clock, engine=engine) as plane:
        await plane.passes()
        ending = (await plane.job()).ending
        assert (ending.kind, ending.failure.host) == (AttemptEnd.RESTARTED, "algo-2")
