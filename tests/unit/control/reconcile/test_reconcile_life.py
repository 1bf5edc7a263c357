"""The reconciler over the life of a job: launches, deadlines, lost hosts, releases, and restarts of the service."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from clary.base.errors import EngineError, Fault, StoreError, WireError
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import HostPhase, OrderKind
from clary.contract.launch_plan import LaunchPlan
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.contract.stop_limits import STOP_ALLOWANCE_S
from clary.control.reconcile.releasing import RELEASE_WAIT_S, RETRY_RELEASE_S
from clary.testing.control_plane import LIMITS, ControlPlane

RUNNING = (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
ENDED = (HostPhase.EXITED, HostPhase.DONE)


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


async def running(plane, *, num_hosts=1, name="job", **members):
    """Create a job, and return its agents once its program runs on every host."""
    await plane.create(name, num_hosts=num_hosts, **members)
    await plane.passes()
    agents = [plane.agent(name, f"algo-{index + 1}") for index in range(num_hosts)]
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        for agent in agents:
            await agent.report(phase)
    return agents


def secondaries(job):
    return [row.status.value for row in job.transitions]


async def test_a_job_passes_through_every_status_and_its_hosts_are_released(plane):
    await plane.create(num_hosts=2)
    await plane.run_to_end(num_hosts=2)
    job = await plane.job()
    assert secondaries(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert job.is_released
    assert plane.engine.released == ["job/1"]
    (pool,) = plane.engine.released_pools
    with pytest.raises(WireError, match="has ended"):
        plane.pool_gateway.authorize(pool, job.plan["pool_token"])
    assert pool.startswith("pool_")
    assert not job.pool
    assert plane.hub.active_jobs() == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineError("no cgroup for you"), "InternalServerError: no cgroup for you"),
        (EngineError("all hosts are taken", fault=Fault.CAPACITY), "CapacityError: all hosts are taken"),
        (RuntimeError("bug"), "InternalServerError: hosts could not be launched: RuntimeError: bug"),
        (TimeoutError("netlink"), "InternalServerError: hosts could not be launched: TimeoutError: netlink"),
    ],
)
@pytest.mark.parametrize("step", ["launch_errors", "start_errors"])
async def test_a_launch_that_fails_in_any_way_fails_the_job_with_its_reason(plane, error, reason, step):
    getattr(plane.engine, step).append(error)
    await plane.create()
    await plane.passes()
    description = await plane.describe()
    assert description["TrainingJobStatus"] == "Failed"
    assert description["FailureReason"].startswith(reason)
    await plane.passes()
    assert (await plane.job()).is_released
    assert plane.engine.launched == ["job/1"], "one try, no second"


async def test_a_launch_that_hangs_is_given_up(plane, monkeypatch):
    async def hang(plan):
        await asyncio.Event().wait()

    monkeypatch.setattr(plane.engine, "launch", hang)
    plane.reconciler.launcher._limits = replace(LIMITS, launch_timeout_s=0.02)
    await plane.create()
    await plane.passes()
    reason = (await plane.describe())["FailureReason"]
    assert reason == "InternalServerError: hosts were not ready within 0.02 s (setting launch_timeout_s)"


async def test_a_job_whose_log_stream_cannot_be_created_fails_and_is_released(plane, monkeypatch):
    async def full(stream, created_at):
        raise StoreError("no space left on device", fault=Fault.INFRASTRUCTURE)

    monkeypatch.setattr(plane.logs, "create_stream", full)
    await plane.create()
    await plane.passes(2)
    job = await plane.job()
    assert (job.status, job.is_released) == (TrainingJobStatus.FAILED, True)


@pytest.mark.parametrize("engine_error", [None, EngineError("no space left on device")])
async def test_a_launch_that_can_not_be_recorded_is_repeated_and_blames_no_agent(
    plane, monkeypatch, engine_error, caplog
):
    write, num_failures = plane.store.update_job, 0

    async def fail_once_launched(name, change, **options):
        nonlocal num_failures
        if plane.engine.launched and not num_failures:
            num_failures += 1
            raise StoreError("a write was not confirmed: the database said: database or disk is full", retryable=True)
        return await write(name, change, **options)

    monkeypatch.setattr(plane.store, "update_job", fail_once_launched)
    if engine_error is not None:
        plane.engine.launch_errors.append(engine_error)
    await plane.create()
    await plane.passes(3)
    assert num_failures == 1
    assert plane.engine.launched == ["job/1", "job/1"]
    assert plane.engine.started == ["job/1"]
    assert (await plane.job()).status is TrainingJobStatus.IN_PROGRESS
    assert "background work failed" in caplog.text


async def test_logs_that_cannot_be_sealed_do_not_block_the_release_of_hosts(plane, monkeypatch, caplog):
    async def broken(stream):
        raise StoreError("input/output error")

    monkeypatch.setattr(plane.logs, "seal", broken)
    await plane.create()
    await plane.run_to_end()
    assert (await plane.job()).is_released
    assert "may not survive a power cut" in caplog.text


async def test_max_runtime_counts_from_the_start_of_training(plane):
    await plane.create(StoppingCondition={"MaxRuntimeInSeconds": 100})
    await plane.passes()
    agent = plane.agent()
    await agent.report(HostPhase.PREPARING)
    await move(plane, agent, 99)
    assert (await plane.job()).secondary_status is SecondaryStatus.DOWNLOADING
    await agent.report(HostPhase.PREPARED)
    await agent.report(HostPhase.RUNNING)
    await move(plane, agent, 99)
    assert (await plane.job()).status is TrainingJobStatus.IN_PROGRESS
    await move(plane, agent, 1)
    job = await plane.job()
    assert job.status is TrainingJobStatus.STOPPING
    assert (job.hosts["algo-1"].order.kind, job.hosts["algo-1"].order.grace_s) == (OrderKind.STOP, 120)
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.DONE)
    job = await plane.job()
    assert (job.status, job.secondary_status) == (TrainingJobStatus.STOPPED, SecondaryStatus.MAX_RUNTIME_EXCEEDED)


async def move(plane, agent, seconds):
    """Advance the clock while the agent keeps reporting."""
    plane.clock.advance(seconds)
    await agent.report()
    await plane.passes()


async def test_a_silent_host_is_lost_and_the_job_fails_naming_it(plane):
    first, _second = await running(plane, num_hosts=2)
    plane.clock.advance(4.9)
    await first.report()
    await plane.passes()
    assert not (await plane.job()).end_cause
    plane.clock.advance(0.1)
    await plane.passes()
    job = await plane.job()
    assert job.failure.message == (
        "algo-2 was lost: its agent has been silent for 5.0 s (limit 5 s, setting host_timeout_s)"
    )
    assert job.hosts["algo-1"].order.kind is OrderKind.STOP
    await first.report(HostPhase.EXITED)
    assert (await plane.job()).status is TrainingJobStatus.FAILED


async def test_a_host_whose_link_is_cut_is_lost_though_its_agent_reports(plane):
    await running(plane, num_hosts=2)
    plane.engine.cut_off_hosts["algo-2"] = "its link is dead"
    await plane.passes()
    job = await plane.job()
    assert job.failure.message == "algo-2 was lost: its link is dead"
    assert job.hosts["algo-1"].order.kind is OrderKind.STOP


async def test_a_lost_host_is_fenced_at_once_and_only_once_and_the_other_hosts_are_not_fenced(plane):
    first, _second = await running(plane, num_hosts=2)
    plane.engine.cut_off_hosts["algo-2"] = "its link is dead"
    await plane.passes()
    await first.report()
    await plane.passes()
    assert plane.engine.fenced == ["job/1/algo-2"]
    assert (await plane.job()).status is TrainingJobStatus.IN_PROGRESS


async def test_the_release_of_a_job_does_not_wait_for_the_agent_of_a_lost_host(plane):
    first, _second = await running(plane, num_hosts=2)
    plane.engine.cut_off_hosts["algo-2"] = "its link is dead"
    await plane.passes()
    await first.report(HostPhase.EXITED)
    plane.engine.end_agent("job", "algo-1")
    await plane.passes()
    assert (await plane.job()).status is TrainingJobStatus.FAILED
    assert plane.engine.released == ["job/1"]


async def test_setting_the_machine_s_clock_forward_loses_no_host(plane):
    (agent,) = await running(plane)
    plane.clock.set_time_of_day(plane.clock.now() + timedelta(minutes=10))
    await plane.passes()
    assert (await plane.job()).end_cause is None
    await agent.report()


async def test_a_host_is_lost_at_once_when_its_agent_has_died(plane):
    await running(plane)
    plane.engine.end_agent("job", "algo-1")
    await plane.passes()
    reason = (await plane.describe())["FailureReason"]
    assert reason == "InternalServerError: algo-1 was lost: its agent ended in phase running without leave"


async def test_an_agent_that_reports_during_the_check_of_hosts_is_judged_by_its_last_report(plane, monkeypatch):
    (agent,) = await running(plane)
    hosts = plane.engine.hosts

    async def last_words_meanwhile(plan):
        monkeypatch.setattr(plane.engine, "hosts", hosts)
        await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
        await agent.report(HostPhase.DONE)
        plane.engine.end_agent("job", "algo-1")
        return await hosts(plan)

    monkeypatch.setattr(plane.engine, "hosts", last_words_meanwhile)
    await plane.passes()
    job = await plane.job()
    assert (job.status, job.hosts["algo-1"].facts.phase) == (TrainingJobStatus.COMPLETED, HostPhase.DONE)


async def test_an_agent_that_never_reports_is_lost_after_the_launch_limit(plane):
    await plane.create()
    plane.clock.advance(1000)  # the service is older than the job
    await plane.passes()
    plane.clock.advance(59)
    await plane.passes()
    assert not (await plane.job()).is_terminal
    plane.clock.advance(1)
    await plane.passes()
    assert "did not report within 60 s of its launch" in (await plane.describe())["FailureReason"]


async def test_a_host_is_lost_if_its_program_never_ends_after_the_order_to_stop(plane):
    (agent,) = await running(plane)
    await plane.stop()
    limit_s = LIMITS.stop_grace_s + STOP_ALLOWANCE_S
    await move(plane, agent, limit_s - 1)
    assert (await plane.job()).status is TrainingJobStatus.STOPPING
    await move(plane, agent, 1)
    job = await plane.job()
    assert (job.status, job.secondary_status) == (TrainingJobStatus.STOPPED, SecondaryStatus.STOPPED)
    assert job.hosts["algo-1"].facts.phase is HostPhase.LOST


async def test_a_stopping_host_is_not_lost_for_the_time_in_which_no_service_ran(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        (agent,) = await running(plane)
        await plane.stop()
    plane.clock.advance(100 * (LIMITS.stop_grace_s + STOP_ALLOWANCE_S))
    async with ControlPlane.open(tmp_path, clock=plane.clock, engine=plane.engine) as again:
        await again.passes()
        agent._plane = again
        assert (await again.job()).hosts["algo-1"].facts.phase is HostPhase.RUNNING
        await agent.report(HostPhase.EXITED, exits=(again.exit_of(0),))
        assert (await again.job()).secondary_status is SecondaryStatus.UPLOADING


async def test_a_peer_that_never_ends_after_a_failure_does_not_keep_the_job_from_failing(plane):
    first, second = await running(plane, num_hosts=2)
    await second.report(HostPhase.EXITED, exits=(plane.exit_of(7),))
    assert (await plane.job()).stop_ordered_at == plane.clock.now()
    plane.clock.advance(LIMITS.stop_grace_s + STOP_ALLOWANCE_S)
    for agent in (first, second):
        await agent.report()
    await plane.passes()
    assert (await plane.job()).hosts["algo-1"].facts.phase is HostPhase.LOST
    await second.report(HostPhase.DONE)
    assert (await plane.describe())[
        "FailureReason"
    ] == "AlgorithmError: algo-2: the program ended with exit code 7, exit code: 7"


async def test_an_upload_that_takes_too_long_fails_the_job(plane):
    (agent,) = await running(plane)
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.UPLOADING)
    await move(plane, agent, LIMITS.upload_timeout_s)
    assert "did not reach the object store within 600 s" in (await plane.describe())["FailureReason"]


async def test_what_is_left_of_the_results_is_written_if_the_leader_is_lost_while_another_host_stages(plane):
    first, second = await running(plane, num_hosts=2)
    for agent in (first, second):
        await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await second.report(HostPhase.UPLOADING)
    plane.engine.end_agent("job", "algo-1")
    await plane.passes(3)
    assert (await plane.job()).hosts["algo-1"].facts.phase is HostPhase.LOST
    plane.clock.advance(1)
    await second.report(HostPhase.DONE)
    job = await plane.job()
    assert job.hosts["algo-2"].order.arguments["role"] == "lead"
    assert job.status is TrainingJobStatus.IN_PROGRESS
    await second.report(HostPhase.UPLOADING)
    plane.clock.advance(1)
    uri = (await plane.job()).plan["output"]["model_uri"]
    await second.report(HostPhase.DONE, uploaded=(uri,))
    described = await plane.describe()
    assert described["TrainingJobStatus"] == "Failed", "the results of algo-1 are lost"
    assert "algo-1" in described["FailureReason"]
    assert described["ModelArtifacts"]["S3ModelArtifacts"] == uri


async def test_release_waits_for_agents_to_leave_and_then_ends_the_hosts(plane):
    (agent,) = await running(plane)
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.DONE)
    await plane.passes()
    plane.clock.advance(RELEASE_WAIT_S - 1)
    await plane.passes()
    assert plane.engine.released == []
    plane.clock.advance(1)
    await plane.passes()
    assert plane.engine.released == ["job/1"]


async def test_a_failed_release_is_retried_after_a_pause_and_holds_capacity_until_then(plane):
    plane.engine.release_errors += [EngineError("still mounted"), EngineError("still mounted")]
    await plane.create(num_hosts=4)
    await plane.run_to_end(num_hosts=4)
    pool = (await plane.job()).pool
    await plane.create("next")
    for _ in range(2):
        await plane.passes(3)
        assert not (await plane.job("next")).hosts
        plane.clock.advance(RETRY_RELEASE_S)
    await plane.passes(2)
    assert plane.engine.released_pools == [pool] * 3
    assert plane.engine.released == ["job/1"]
    assert (await plane.job()).is_released
    assert (await plane.job("next")).hosts


async def test_a_job_whose_pass_fails_does_not_keep_other_jobs_from_their_end(plane, monkeypatch, caplog):
    await running(plane, name="broken")
    await running(plane, name="fine")
    hosts = plane.engine.hosts

    async def failing(plan):
        if plan.job_name == "broken":
            raise OSError("proc is gone")
        return await hosts(plan)

    monkeypatch.setattr(plane.engine, "hosts", failing)
    plane.engine.end_agent("fine", "algo-1")
    await plane.passes()
    assert (await plane.job("fine")).status is TrainingJobStatus.FAILED
    assert "job broken: this pass failed" in caplog.text


async def test_a_restarted_service_finds_its_jobs_and_counts_silence_from_its_own_start(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await running(plane)
    plane.clock.advance(600)
    async with ControlPlane.open(tmp_path, clock=plane.clock, engine=plane.engine) as again:
        await again.passes()
        assert (await again.job()).end_cause is None
        again.clock.advance(5)
        await again.passes()
        assert "silent for 5.0 s" in (await again.describe())["FailureReason"]


async def test_an_agent_that_outlived_the_service_continues_with_the_next_service(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        (agent,) = await running(plane)
    async with ControlPlane.open(tmp_path, clock=plane.clock, engine=plane.engine) as again:
        agent._plane = again
        again.clock.advance(4)
        await agent.report()
        again.clock.advance(4)
        await again.passes()
        await agent.report(HostPhase.EXITED, exits=(again.exit_of(0),))
        await agent.report(HostPhase.DONE)
        assert (await again.job()).status is TrainingJobStatus.COMPLETED
        assert again.engine.launched == ["job/1"]


async def crash_before_launch(tmp_path, monkeypatch, *, then=None):
    """Run a service that dies after it has recorded the launch of hosts and before it asks the engine for them."""
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2)
        monkeypatch.setattr(plane.reconciler.launcher, "begin", lambda job: None)
        await plane.passes()
        if then is not None:
            await then(plane)
        assert plane.engine.launched == []
    return plane


async def test_a_launch_that_was_recorded_before_a_crash_is_made_by_the_next_service(tmp_path, monkeypatch):
    plane = await crash_before_launch(tmp_path, monkeypatch)
    plane.clock.advance(3600)  # longer than the time that agents have for their first report
    async with ControlPlane.open(tmp_path, clock=plane.clock, engine=plane.engine) as again:
        await again.passes(3)
        assert again.engine.started == ["job/1"]
        job = await again.job()
        assert (job.attempt, job.end_cause) == (1, None)
        assert [stream.name for stream in (await again.logs.list_streams("job/")).streams] == list(job.log_streams)
        again.engine.end_all_agents("job")
        await again.passes(3)
        assert again.engine.started == ["job/1"], "agents that die at once are not started for ever"
        assert "its agent ended in phase launching" in (await again.describe())["FailureReason"]


async def test_a_job_stopped_before_its_hosts_were_launched_is_not_launched_after_a_restart(tmp_path, monkeypatch):
    plane = await crash_before_launch(tmp_path, monkeypatch, then=ControlPlane.stop)
    async with ControlPlane.open(tmp_path, clock=plane.clock, engine=plane.engine) as again:
        await again.passes(2)
        assert again.engine.launched == []
        job = await again.job()
        assert (job.status, job.is_released) == (TrainingJobStatus.STOPPED, True)


async def test_a_job_that_ended_before_a_crash_is_released_by_the_next_service(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        (agent,) = await running(plane)
        await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
        await agent.report(HostPhase.DONE)
        plane.engine.end_all_agents("job")
    async with ControlPlane.open(tmp_path, clock=plane.clock, engine=plane.engine) as again:
        await again.passes()
        assert (await again.job()).is_released


async def without_pool(plane):
    """Rewrite the job as an older release stored it: hosts belong to the attempt, and agents lie in its folder."""
    job = await plane.job()
    folder = str(plane.reconciler.launcher._site.folder.jobs / "job/1")
    own = {"pool": "", "pool_token": "", "pool_folder": ""}
    plan = from_plain(LaunchPlan, {**job.plan, **own, "work_folder": folder})
    await plane.engine.start_agents(replace(plan, pool_folder=folder))
    await plane.store.update_job("job", lambda job: replace(job, pool="", plan=to_plain(plan)))
    return plan


@pytest.mark.parametrize("moment", ["launching", "running", "ended"])
async def test_an_attempt_without_a_pool_of_an_older_release_continues_and_is_released(tmp_path, moment):
    async with ControlPlane.open(tmp_path) as first:
        await first.create()
        await first.passes()
        agent = first.agent()
        for phase in {"launching": (), "running": RUNNING, "ended": (*RUNNING, *ENDED)}[moment]:
            await agent.report(phase, exits=(first.exit_of(0),) if phase in ENDED else ())
        engine, old_plan = first.engine, await without_pool(first)
        token = agent.token
    engine.released.clear()
    async with ControlPlane.open(tmp_path, clock=first.clock, engine=engine) as second:
        await second.passes()
        job = await second.job()
        assert job.pool
        assert job.plan["pool_folder"] == old_plan.work_folder
        second.pool_gateway.authorize(job.pool, job.plan["pool_token"])
        assert engine.launched == ["job/1"] * (2 if moment == "launching" else 1)
        assert engine.fenced == []
        if moment != "ended":
            agent = second.agent()
            assert agent.token == token
            for phase in (*RUNNING, *ENDED):
                await agent.report(phase, exits=(second.exit_of(0),) if phase in ENDED else ())
        assert (await second.job()).status is TrainingJobStatus.COMPLETED
        second.engine.end_all_agents("job")
        await second.passes()
        job = await second.job()
        assert (job.is_released, job.pool) == (True, "")
        assert engine.released == ["job/1"]


async def test_a_new_job_under_an_old_name_is_not_released_for_its_predecessor(plane, monkeypatch):
    await running(plane, name="a-slow-one")
    (agent,) = await running(plane, name="again")
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.DONE)
    plane.engine.end_all_agents("again")
    hosts = plane.engine.hosts

    async def meanwhile(plan):
        """During the check of another job, the old job is deleted and the new job is created."""
        if plan.job_name == "a-slow-one" and "again" not in plane.engine.forgotten:
            await plane.reconciler.releaser.release(await plane.job("again"))
            await plane.delete("again")
            await plane.create("again")
        return await hosts(plan)

    monkeypatch.setattr(plane.engine, "hosts", meanwhile)
    await plane.passes()
    assert plane.engine.released == ["again/1"], "once, for the old job"
    monkeypatch.setattr(plane.engine, "hosts", hosts)
    await plane.passes()
    assert (await plane.job("again")).status is TrainingJobStatus.IN_PROGRESS


async def test_a_cancelled_loop_ends_in_the_middle_of_launches(plane, monkeypatch):
    entered = asyncio.Event()

    async def hang(plan):
        entered.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(plane.engine, "launch", hang)
    await plane.create("one")
    await plane.create("two")
    loop = asyncio.create_task(plane.reconciler.run())
    await entered.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(loop, 5)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("job:")]
