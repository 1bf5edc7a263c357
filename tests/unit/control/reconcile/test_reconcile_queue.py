"""Order of starts: first come, first served, reasons of waits, limits on waiting, jobs that cannot be planned."""

import asyncio

import pytest

from clary.base.errors import ContractError, WireError
from clary.contract.rehearsals import DISKS_VARIABLE, REHEARSAL_VARIABLE, disks_value
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import events
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:  # of 4 hosts
        yield plane


def has_hosts(job):
    return bool(job.hosts)


async def test_the_oldest_job_starts_first_and_a_small_one_never_overtakes_a_large_one(plane):
    for name, num_hosts in (("first", 3), ("large", 2), ("small", 1)):
        await plane.create(name, num_hosts=num_hosts)
        plane.clock.advance(1)
    await plane.passes(3)
    assert [has_hosts(await plane.job(name)) for name in ("first", "large", "small")] == [True, False, False]
    await plane.run_to_end("first", num_hosts=3)
    await plane.passes()
    assert has_hosts(await plane.job("large"))
    assert has_hosts(await plane.job("small"))
    assert plane.engine.launched[0] == "first/1"
    assert sorted(plane.engine.launched[1:]) == [
        "large/1",
        "small/1",
    ]  # there is room for both, so both are launched concurrently


async def test_describe_gives_the_reason_of_a_wait(plane):
    await plane.create("holder", num_hosts=3)
    await plane.passes()
    await plane.create("head", num_hosts=2)
    await plane.create("behind")
    await plane.passes()
    head, behind = await plane.describe("head"), await plane.describe("behind")
    assert head["SecondaryStatus"] == "Pending"
    reason = "Needs 2 hosts; 1 of 4 hosts is free: holder holds 3."
    assert head["SecondaryStatusTransitions"][-1]["StatusMessage"] == reason
    assert behind["SecondaryStatusTransitions"][-1]["StatusMessage"] == (
        "First come, first served: 1 older job waits for hosts (head)."
    )


async def test_a_request_for_disks_that_can_not_be_made_is_refused_before_it_is_stored(plane):
    asked = []

    def refuse(size_bytes):
        asked.append(size_bytes)
        return "only root may mount"

    plane.why_no_disks = refuse
    disks = disks_value(["algo-1", "algo-2", "algo-9"], 1 << 30)
    rehearsal = {REHEARSAL_VARIABLE: "1", DISKS_VARIABLE: disks}
    with pytest.raises(WireError, match=r"CLARY_REHEARSAL_DISKS in Environment .*: only root may mount") as caught:
        await plane.create(num_hosts=2, Environment=rehearsal)
    assert caught.value.code == "ValidationException"
    assert asked == [2 << 30], "of all hosts that there are"
    assert await plane.store.get_job("job") is None
    await plane.create("plain", Environment={DISKS_VARIABLE: disks})
    await plane.create("other", Environment={REHEARSAL_VARIABLE: "1"})
    assert len(asked) == 1, "who wants no disk is not asked for one"
    plane.why_no_disks = lambda size_bytes: ""
    await plane.create(num_hosts=2, Environment=rehearsal)


async def test_a_waiting_job_does_not_keep_the_loop_awake(plane):
    await plane.create("holder", num_hosts=4)
    await plane.create("waiter")
    await plane.passes(2)
    await plane.hub.wait_for_change(0.0)
    await plane.passes(3)
    woken = asyncio.create_task(plane.hub.wait_for_change(60))
    _, pending = await asyncio.wait([woken], timeout=0.05)
    woken.cancel()
    assert pending, "a pass without news woke the next one"


async def test_only_updates_with_a_change_wake_the_loop(plane):
    await plane.create("job")
    await plane.hub.wait_for_change(0.0)
    await plane.hub.update("job", lambda job: job)
    assert not plane.hub._changed.is_set()
    await plane.stop("job")
    assert plane.hub._changed.is_set()


@pytest.mark.parametrize(
    ("members", "seconds", "secondary"),
    [
        (
            {
                "EnableManagedSpotTraining": True,
                "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
            },
            60,
            SecondaryStatus.MAX_WAIT_TIME_EXCEEDED,
        ),
        (
            {"StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxPendingTimeInSeconds": 1800}},
            1800,
            SecondaryStatus.STOPPED,
        ),
    ],
)
async def test_a_job_that_waits_too_long_ends_even_behind_another_waiting_job(plane, members, seconds, secondary):
    await plane.create("holder", num_hosts=4)
    await plane.create("head")
    await plane.create("limited", **members)
    await plane.passes()
    plane.clock.advance(seconds - 1)
    await plane.passes()
    assert not (await plane.job("limited")).is_terminal
    plane.clock.advance(1)
    await plane.passes()
    job = await plane.job("limited")
    assert (job.status, job.secondary_status) == (TrainingJobStatus.STOPPED, secondary)
    assert not (await plane.job("head")).is_terminal


async def test_a_job_that_cannot_be_planned_fails_with_its_reason_and_blocks_no_other(plane, monkeypatch):
    await plane.create("bad")
    await plane.create("good")
    mapping = plane.admission.mapping

    def broken(request):
        if request.name == "bad":
            raise ContractError("instance_types: no such key")
        return mapping(request)

    monkeypatch.setattr(plane.admission, "mapping", broken)
    await plane.passes()
    bad = await plane.job("bad")
    assert (bad.status, bad.failure.message) == (TrainingJobStatus.FAILED, "instance_types: no such key")
    assert has_hosts(await plane.job("good"))


async def test_a_defect_while_planning_is_an_internal_failure_of_that_job_alone(plane, monkeypatch, caplog):
    await plane.create("bad")
    monkeypatch.setattr(plane.admission, "decide_next", lambda job, mapping, leaving: [][0])
    await plane.passes()
    reason = (await plane.describe("bad"))["FailureReason"]
    assert reason.startswith("InternalServerError: hosts could not be launched: IndexError")
    assert "Traceback" in caplog.text


async def test_a_job_that_can_never_fit_again_fails_for_lack_of_capacity(plane):
    await plane.create("big", num_hosts=4)
    plane.admission._capacity = type(plane.admission._capacity)(
        max_hosts=2, num_gpus=0, memory_per_host_bytes=1, memory_bytes=1 << 50
    )
    await plane.passes()
    assert (await plane.describe("big"))["FailureReason"].startswith("CapacityError: The account-level service limit")


async def test_a_failing_store_does_not_end_the_loop_and_the_job_starts_later(plane, monkeypatch):
    await plane.create("job")
    apply = plane.hub.apply

    async def failing(name, event):
        raise OSError("disk full")

    monkeypatch.setattr(plane.hub, "apply", failing)
    await plane.passes()
    monkeypatch.setattr(plane.hub, "apply", apply)
    await plane.passes()
    assert has_hosts(await plane.job())


async def test_no_job_starts_while_the_service_shuts_down(plane):
    plane.reconciler.is_draining = True
    await plane.create("job")
    await plane.passes()
    assert plane.engine.launched == []


async def test_no_job_starts_in_a_pass_that_was_running_when_the_service_began_to_shut_down(plane, monkeypatch):
    await plane.create("first")
    await plane.create("second")
    ask = plane.reconciler.launcher.hosts_asked

    async def shut_down_meanwhile(job, *arguments, **options):
        asked = await ask(job, *arguments, **options)
        plane.reconciler.is_draining = True
        return asked

    monkeypatch.setattr(plane.reconciler.launcher, "hosts_asked", shut_down_meanwhile)
    await plane.passes()
    assert plane.engine.launched == []
    assert [(await plane.job(name)).attempt for name in ("first", "second")] == [0, 0]


async def test_a_service_that_ends_waits_for_a_start_that_is_being_stored(plane, monkeypatch):
    await plane.create("job")
    apply, stored, may_go_on = plane.hub.apply, asyncio.Event(), asyncio.Event()

    async def slow(name, event):
        if isinstance(event, events.HostsAsked):
            stored.set()
            await may_go_on.wait()
        return await apply(name, event)

    monkeypatch.setattr(plane.hub, "apply", slow)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(plane.passes(1))
        await stored.wait()
        draining = tasks.create_task(plane.reconciler.drain())
        await asyncio.sleep(0.01)
        assert not draining.done()
        may_go_on.set()
    assert [job.name for job in plane.hub.active_jobs()] == ["job"], "it is told to stop with the others"


async def test_a_waiting_job_that_is_stopped_ends_at_once_and_frees_the_queue(plane):
    await plane.create("holder", num_hosts=3)
    await plane.create("head", num_hosts=2)
    await plane.create("small")
    await plane.passes()
    await plane.stop("head")
    await plane.passes()
    assert (await plane.job("head")).status is TrainingJobStatus.STOPPED
    assert has_hosts(await plane.job("small"))


async def test_the_queue_keeps_its_order_over_a_restart(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create("holder", num_hosts=4)
        for name in ("z-older", "a-newer"):
            plane.clock.advance(1)
            await plane.create(name)
        await plane.passes()
    async with ControlPlane.open(tmp_path, clock=plane.clock, engine=plane.engine) as again:
        assert list(again.hub.waiting_jobs()) == ["z-older", "a-newer"]
        assert [job.name for job in again.hub.active_jobs()] == ["holder"]
