"""Jobs of an engine with a queue: they wait with the engine's reason, are stopped, expire, and start once granted."""

import asyncio
from dataclasses import replace

import pytest

from clary.base.errors import EngineError, StoreError, WireError
from clary.contract.agent_protocol import CapacityNotice, HostPhase
from clary.contract.statuses import TrainingJobStatus
from clary.control.engines.interface import CapacityEnds
from clary.control.jobs import events
from clary.control.reconcile.granting import expect_boots
from clary.control.reconcile.reconciler import REASON_WAIT_S
from clary.control.reconcile.unowned_hosts import UnownedHosts
from clary.control.settings import Settings
from clary.testing.control_plane import LIMITS, ControlPlane
from clary.testing.fake_queue_engine import FakeQueueEngine


@pytest.fixture
def engine():
    return FakeQueueEngine()


@pytest.fixture
async def plane(tmp_path, engine):
    async with ControlPlane.open(tmp_path, engine=engine) as plane:
        yield plane


def messages(described):
    return [row["StatusMessage"] for row in described["SecondaryStatusTransitions"]]


async def test_a_job_waits_for_an_hour_with_the_engine_s_reason(plane, engine):
    await plane.create(num_hosts=2)
    for minute in range(60):
        engine.words = f"Slurm job 4711 waits: Priority, minute {minute // 30}"
        plane.clock.advance(60)
        await plane.passes()
    described = await plane.describe("job")
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("InProgress", "Pending")
    assert messages(described)[-1] == "Slurm job 4711 waits: Priority, minute 1"
    assert engine.launched == []  # a waiting job does not count as launching
    assert len(engine.asked) == 1


async def test_the_pool_is_stored_before_the_engine_is_asked(plane, engine):
    engine.ask_errors = [EngineError("slurmctld does not answer", retryable=True)]
    await plane.create()
    await plane.passes()
    job = await plane.job("job")
    assert job.pool.startswith("pool_")
    assert "slurmctld does not answer" in job.pending_reason
    await plane.passes()
    assert list(engine.asked) == [job.pool]


async def test_a_granted_job_starts_under_the_tag_of_its_request(plane, engine):
    await plane.create(num_hosts=2)
    await plane.passes()
    (tag,) = engine.asked
    engine.granted.add(tag)
    await plane.passes(2)
    job = await plane.job("job")
    assert (job.pool, job.attempt, len(job.hosts)) == (tag, 1, 2)
    assert job.plan["notice_grace_s"] == 30.0
    assert "2 hosts were granted: n1 n2" in messages(await plane.describe("job"))
    await plane.run_to_end("job", num_hosts=2)
    await plane.passes(3)
    assert engine.released_pools == [tag]


async def test_a_job_on_an_engine_that_kills_no_host_has_no_time_of_a_kill_in_its_plan(plane, engine, monkeypatch):
    grant = engine.grant

    async def without_kill(tag, num_hosts):
        return replace(await grant(tag, num_hosts), notice_grace_s=0.0)

    monkeypatch.setattr(engine, "grant", without_kill)
    await plane.create()
    await plane.passes()
    engine.granted.update(engine.asked)
    await plane.passes(2)
    job = await plane.job("job")
    assert (job.attempt, job.plan["notice_grace_s"]) == (1, 0.0), "agents would leave their uploads for it"


async def test_a_job_that_could_want_gpus_waits_until_new_nodes_have_told_theirs(plane, engine):
    unsure = replace(
        engine.kinds[0], name="new", num_nodes=1, num_free=0, why_unsure="box9 has not reported its GPUs yet"
    )
    engine.kinds[:] = [unsure]
    gpus = {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1}
    await plane.create("train", ResourceConfig=gpus)
    await plane.create("plain")
    await plane.passes(2)
    assert messages(await plane.describe("train"))[-1] == "waits for slurm: box9 has not reported its GPUs yet"
    assert messages(await plane.describe("plain"))[-1] == "waits for slurm: box9 has not reported its GPUs yet"
    assert engine.asked == {}
    engine.kinds[:] = [replace(unsure, why_unsure="", name="gpu", num_gpus=8)]
    await plane.passes(2)
    assert sorted((order.job_name, order.hosts[0].num_gpus) for order in engine.asked.values()) == [
        ("plain", 0),
        ("train", 8),
    ]


async def test_a_job_does_not_wait_behind_another_job(plane, engine):
    await plane.create("large", num_hosts=4)
    await plane.create("small")
    await plane.passes()
    small = (await plane.job("small")).pool
    engine.granted.add(small)
    await plane.passes(2)
    assert (await plane.job("small")).hosts
    assert not (await plane.job("large")).hosts


async def test_a_request_to_the_engine_names_the_limits_and_the_nodes(plane, engine):
    await plane.create(num_hosts=3)
    await plane.passes()
    (order,) = engine.asked.values()
    assert [wish.index for wish in order.hosts] == [0, 1, 2]
    assert {wish.kind for wish in order.hosts} == {"cpu"}
    assert order.limit_s > 3600 + 120
    assert order.grace_s == 120
    assert not order.is_spot


async def test_a_waiting_job_can_be_stopped_and_its_request_is_withdrawn(plane, engine):
    await plane.create()
    await plane.passes()
    (tag,) = engine.asked
    await plane.call("sagemaker", "StopTrainingJob", TrainingJobName="job")
    await plane.passes(3)
    assert (await plane.job("job")).status is TrainingJobStatus.STOPPED
    assert engine.released_pools == [tag]
    assert engine.asked == {}


async def test_a_waiting_job_expires_after_its_own_limit(plane, engine):
    stopping = {"MaxRuntimeInSeconds": 3600, "MaxPendingTimeInSeconds": 7200}
    await plane.create(StoppingCondition=stopping)
    await plane.passes()
    plane.clock.advance(7201)
    await plane.passes(3)
    assert (await plane.job("job")).status is TrainingJobStatus.STOPPED
    assert engine.asked == {}


async def test_a_launch_that_fails_permanently_ends_the_job(plane, engine):
    engine.ask_errors = [EngineError("sbatch: invalid account")]
    await plane.create()
    await plane.passes(2)
    described = await plane.describe("job")
    assert described["TrainingJobStatus"] == "Failed"
    assert "invalid account" in described["FailureReason"]


async def test_more_hosts_than_nodes_and_network_isolation_are_refused_at_once(plane):
    with pytest.raises(WireError, match="5 nodes are needed") as refused:
        await plane.create(num_hosts=5)
    assert refused.value.code == "ResourceLimitExceeded"
    with pytest.raises(WireError, match="EnableNetworkIsolation"):
        await plane.create(EnableNetworkIsolation=True)


async def test_a_restarted_service_continues_to_wait_under_the_same_tag(tmp_path, engine):
    async with ControlPlane.open(tmp_path, engine=engine) as plane:
        await plane.create()
        await plane.passes()
        clock = plane.clock
    (tag,) = engine.asked
    async with ControlPlane.open(tmp_path, engine=engine, clock=clock) as plane:
        unowned = UnownedHosts(plane.hub, engine, plane.store)
        await unowned.take_back()
        assert list(engine.asked) == [tag]
        engine.granted.add(tag)
        await plane.passes(2)
        assert (await plane.job("job")).hosts


async def test_an_allocation_that_no_job_claims_is_released_at_the_start(tmp_path, engine):
    async with ControlPlane.open(tmp_path, engine=engine) as plane:
        await plane.create()
        await plane.passes()
        (tag,) = engine.asked
        engine.asked["pool_00000000dead"] = engine.asked[tag]
        await UnownedHosts(plane.hub, engine, plane.store).take_back()
        assert list(engine.asked) == [tag]


@pytest.mark.parametrize("moment", ["before the engine's end", "after the engine's end"])
async def test_a_kill_while_hosts_of_waiting_jobs_are_given_back_fails_no_job(tmp_path, engine, moment):
    async with ControlPlane.open(tmp_path, engine=engine) as plane:
        await plane.create()
        await plane.passes()
        clock, end = plane.clock, engine.end
        (tag,) = engine.asked

        async def be_killed(pool):
            if moment == "after the engine's end":
                await end(pool)
            raise asyncio.CancelledError

        engine.end = be_killed
        plane.reconciler.is_draining = True
        with pytest.raises(asyncio.CancelledError):
            await plane.reconciler.give_pools_back()
        engine.end = end
    async with ControlPlane.open(tmp_path, engine=engine, clock=clock) as plane:
        await UnownedHosts(plane.hub, engine, plane.store).take_back()
        assert engine.asked == {}, "the old request remains, for no job"
        await plane.passes(2)
        (other,) = engine.asked
        engine.granted.add(other)
        await plane.passes(2)
        job = await plane.job()
        assert (job.pool, job.attempt, job.failure) == (other, 1, None)
        assert other != tag


async def test_hosts_granted_while_the_service_shuts_down_start_no_job(plane, engine, monkeypatch):
    await plane.create()
    await plane.passes()
    (tag,) = engine.asked
    engine.granted.add(tag)
    grant = engine.grant

    async def end_meanwhile(pool, num_hosts):
        granted = await grant(pool, num_hosts)
        plane.reconciler.is_draining = True
        await plane.reconciler.give_pools_back()
        return granted

    monkeypatch.setattr(engine, "grant", end_meanwhile)
    await plane.passes()
    job = await plane.job()
    assert (job.attempt, job.pool, engine.asked) == (0, "", {})


async def test_hosts_whose_end_cannot_be_recorded_stay(plane, engine, monkeypatch):
    await plane.create()
    await plane.passes()
    (tag,) = engine.asked

    async def refuse(*arguments, **options):
        raise StoreError("the disk is full")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(plane.store, "update_job", refuse)
        await plane.reconciler.give_pools_back()
    assert list(engine.asked) == [tag]
    engine.granted.add(tag)
    await plane.passes(2)
    assert (await plane.job()).hosts


async def test_a_job_whose_pool_was_ended_by_a_killed_service_asks_for_another(plane, engine):
    await plane.create()
    await plane.passes()
    (tag,) = engine.asked
    await engine.end(tag)  # the record of the job still names the pool
    await plane.passes(2)
    (other,) = engine.asked
    job = await plane.job()
    assert (job.pool, job.failure) == (other, None)
    assert other != tag


async def test_hosts_of_every_loaded_job_are_expected_before_the_first_pass(plane, engine):
    for name, number in (("waits", 2), ("runs", 3)):
        await plane.create(name, num_hosts=number)
    await plane.passes()
    granted = (await plane.job("runs")).pool
    engine.granted.add(granted)
    await plane.passes(2)
    await plane.create("new", num_hosts=1)  # has no pool yet
    expected = {}

    class Doors:
        def expect(self, tag, num_hosts):
            expected[tag] = num_hosts
            raise EngineError(f"{tag}.json: enrolments cannot be read")  # does not keep the hosts of other jobs out

    expect_boots(plane.hub, Doors())
    assert expected == {(await plane.job("waits")).pool: 2, granted: 3}


async def test_a_job_whose_nodes_have_disappeared_waits_for_them(plane, engine):
    await plane.create(num_hosts=2)
    gone = engine.kinds.pop()
    await plane.passes()
    described = await plane.describe("job")
    assert described["TrainingJobStatus"] == "InProgress"
    assert "2 nodes are needed for ml.m5.large; there are 0" in messages(described)[-1]
    engine.kinds.append(gone)
    await plane.passes()
    assert len(engine.asked) == 1


async def test_the_outlook_of_a_job_is_the_engine_s_reason_without_an_estimate(plane, engine):
    await plane.create()
    await plane.passes()
    place = plane.services.queue.place(await plane.job("job"))
    assert (place.place, place.start_in_s, place.num_waiting) == (None, None, 1)
    assert place.estimate == engine.words
    engine.kinds.clear()
    assert plane.services.queue.place(await plane.job("job")).estimate == engine.words


async def test_a_setting_without_effect_on_links_between_nodes_is_noted(tmp_path, engine):
    settings = Settings(home=str(tmp_path), instance_types={"ml.m5.large": {"rate_mbit_s": 100}})
    async with ControlPlane.open(tmp_path, engine=engine, settings=settings) as plane:
        await plane.create()
        notes = (await plane.job("job")).emulation
    assert "ml.m5.large: rate_mbit_s, delay_ms and loss_percent have no effect on the links between nodes" in notes


async def kept(plane, engine, name):
    """Run a job to its end; return the pool, whose hosts are kept afterwards."""
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
    await plane.create(name, ResourceConfig={**resources, "KeepAlivePeriodInSeconds": 600})
    await plane.passes()
    tag = (await plane.job(name)).pool
    engine.granted.add(tag)
    await plane.passes(2)
    await plane.pool_gateway.next_assignment(tag, "algo-1", after="", wait_s=0)
    agent = plane.agent(name)
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        await agent.report(phase)
    for phase in (HostPhase.EXITED, HostPhase.DONE):
        await agent.report(phase, exits=(plane.exit_of(0),), uploaded=agent.model_uris(phase))
    assert await plane.pool_gateway.next_assignment(tag, "algo-1", after=f"{name}:1", wait_s=0) is None
    await plane.passes(2)
    assert (await plane.describe(name))["WarmPoolStatus"]["Status"] == "Available"
    return tag


async def test_unused_hosts_are_released_when_another_job_waits_for_their_nodes(plane, engine):
    tag = await kept(plane, engine, "one")
    assert engine.released_pools == []
    engine.wanted_by = {tag: "Slurm job 4712 of anna waits for nodes"}
    plane.clock.advance(6)
    await plane.passes(3)
    assert engine.released_pools == [tag]
    assert (await plane.describe("one"))["WarmPoolStatus"]["Status"] == "Terminated"


async def test_hosts_are_kept_while_the_engine_does_not_answer_which_jobs_wait(plane, engine):
    await kept(plane, engine, "one")

    async def silent(tags):
        raise EngineError("slurmctld does not answer", retryable=True)

    engine.wanted = silent
    plane.clock.advance(6)
    await plane.passes(3)
    assert engine.released_pools == []


async def losing(plane, engine, **members):
    """Run a job until its second host is lost and its first has a stop order; return the first host's agent."""
    await plane.create(num_hosts=2, **members)
    await plane.passes()
    tag = (await plane.job("job")).pool
    engine.granted.add(tag)
    await plane.passes(2)
    agents = [plane.agent("job", f"algo-{number}") for number in (1, 2)]
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        for agent in agents:
            await agent.report(phase)
    await plane.passes()
    engine.granted.clear()
    engine.num_asked = 0
    plane.clock.advance(LIMITS.host_timeout_s)
    await agents[0].report()
    await plane.passes()
    assert engine.fenced == ["job/1/algo-2"]
    return agents[0]


async def test_a_replacement_of_a_lost_host_is_requested_while_the_other_hosts_still_stop(plane, engine):
    first = await losing(plane, engine, RetryStrategy={"MaximumRetryAttempts": 2})
    await first.report()
    await plane.passes(3)
    job = await plane.job("job")
    assert (job.hosts["algo-1"].facts.phase, job.ending) == (HostPhase.RUNNING, None)
    assert (engine.num_asked, list(engine.asked)) == (1, [job.pool])
    assert [wish.index for wish in engine.asked[job.pool].hosts] == [0, 1]  # the engine knows which hosts are alive

    engine.start_agent(job.pool, "algo-2")  # the replacement node is ready first
    await plane.passes(2)
    await first.report(HostPhase.EXITED, exits=(plane.exit_of(1),))
    await plane.passes()
    await first.report(HostPhase.RELEASED)
    await plane.leave(first)
    engine.granted.add(job.pool)
    await plane.passes(3)
    job = await plane.job("job")
    assert (job.attempt, sorted(job.hosts)) == (2, ["algo-1", "algo-2"])
    assert engine.fenced == ["job/1/algo-2"]  # the node that has taken over the number is not fenced
    assert engine.released_pools == []


async def test_a_release_that_is_repeated_does_not_end_a_replacement(plane, engine, monkeypatch):
    first = await losing(plane, engine, RetryStrategy={"MaximumRetryAttempts": 2})
    await first.report()
    await plane.passes(3)
    engine.start_agent((await plane.job("job")).pool, "algo-2")
    await first.report(HostPhase.EXITED, exits=(plane.exit_of(1),))
    await plane.passes()
    await first.report(HostPhase.RELEASED)
    await plane.leave(first)
    apply, failed = plane.hub.apply, []

    async def fail_once(name, event):
        if isinstance(event, events.Released) and not failed:
            failed.append(name)
            raise StoreError("the database is locked", retryable=True)
        return await apply(name, event)

    monkeypatch.setattr(plane.hub, "apply", fail_once)
    for _ in range(4):
        plane.clock.advance(5)
        await plane.passes(2)
    assert failed
    assert (await plane.job("job")).is_released
    assert engine.fenced == ["job/1/algo-2"], "only the lost host was ended"


async def signalled(plane, engine):
    """Start a job on two hosts; one agent reports a signal of the engine, and both hosts end at once."""
    await plane.create(num_hosts=2)
    await plane.passes()
    engine.granted.update(engine.asked)
    await plane.passes(2)
    agents = [plane.agent("job", f"algo-{number}") for number in (1, 2)]
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        for agent in agents:
            await agent.report(phase)
    notice = CapacityNotice(why="SIGTERM from the engine", at=plane.clock.now(), grace_s=5.0)
    await agents[0].report(HostPhase.RUNNING, notice=notice)
    for phase in (HostPhase.EXITED, HostPhase.RELEASED):
        for agent in agents:
            await agent.report(phase)
    for agent in agents:
        await plane.leave(agent)


async def test_a_signal_that_an_agent_reports_first_gets_the_engine_s_reason(plane, engine):
    await signalled(plane, engine)
    await plane.passes(3)
    assert engine.released_pools == [], "the engine has not told its reason yet"
    engine.ends["algo-2"] = CapacityEnds(why="Slurm job 4711 was cancelled by alice")
    await plane.passes(3)
    job = await plane.job("job")
    (past,) = job.past_attempts
    assert past.reason == "algo-2: its capacity is taken back (Slurm job 4711 was cancelled by alice)"
    assert job.transitions[-1].message.startswith(past.reason)
    assert messages(await plane.describe("job"))[-1].startswith(f"{past.reason}; "), "also while the job waits"


async def test_hosts_are_released_without_a_reason_of_the_engine_after_a_moment(plane, engine):
    await signalled(plane, engine)
    await plane.passes(3)
    plane.clock.advance(REASON_WAIT_S)
    await plane.passes(3)
    (past,) = (await plane.job("job")).past_attempts
    assert "SIGTERM from the engine" in past.reason


async def test_no_replacement_is_requested_for_a_job_that_is_not_restarted(plane, engine):
    first = await losing(plane, engine)
    await first.report()
    await plane.passes(3)
    assert engine.num_asked == 0


async def test_a_replacement_request_is_withdrawn_when_the_job_is_stopped(plane, engine):
    first = await losing(plane, engine, RetryStrategy={"MaximumRetryAttempts": 2})
    await plane.passes(2)
    (tag,) = engine.asked
    await plane.stop()
    await first.report(HostPhase.EXITED, exits=(plane.exit_of(1),))
    await first.report(HostPhase.DONE, uploaded=first.model_uris(HostPhase.DONE))
    await first.report(HostPhase.RELEASED)
    await plane.leave(first)
    await plane.passes(3)
    assert (await plane.job("job")).status is TrainingJobStatus.STOPPED
    assert engine.released_pools == [tag]
    assert engine.asked == {}


async def test_the_request_for_a_replacement_is_repeated_until_the_engine_answers(plane, engine):
    first = await losing(plane, engine, RetryStrategy={"MaximumRetryAttempts": 2})
    engine.ask_errors = [EngineError("slurmctld does not answer", retryable=True)]
    for _ in range(3):
        await first.report()
        await plane.passes()
    assert engine.num_asked == 2  # no further request once the engine has answered


async def test_a_file_system_that_only_the_nodes_have_is_accepted(tmp_path, engine):
    settings = Settings(home=str(tmp_path), file_systems={"fs-0123456789abcdef0": {"path": "/mnt/of-the-nodes"}})
    channel = {
        "ChannelName": "train",
        "DataSource": {
            "FileSystemDataSource": {
                "FileSystemId": "fs-0123456789abcdef0",
                "FileSystemAccessMode": "ro",
                "FileSystemType": "EFS",
                "DirectoryPath": "/sets",
            }
        },
    }
    async with ControlPlane.open(tmp_path, engine=engine, settings=settings) as plane:
        await plane.create("on-nodes", InputDataConfig=[channel])
    (tmp_path / "here").mkdir()
    async with ControlPlane.open(tmp_path / "here", settings=replace(settings, home=str(tmp_path / "here"))) as plane:
        with pytest.raises(WireError, match="cannot be opened"):
            await plane.create("here", InputDataConfig=[channel])
