"""Leases of boxes: requested, placed, ended, lost and found again, with a service that may be killed at any moment."""

import asyncio
import json

import pytest
from spoken_boxes import BOOT, TAG, SpokenBoxes, order, wish

from clary.base.errors import EngineError
from clary.control.engines.boxes import scheduler as scheduler_module
from clary.control.engines.boxes.scheduler import BoxesScheduler
from clary.control.engines.cluster.scheduler import (
    AllocationEnded,
    AllocationState,
    ClusterScheduler,
    Ended,
    NoticeKind,
)
from clary.testing.fake_clock import FakeClock


@pytest.fixture
async def world(tmp_path):
    return await SpokenBoxes(tmp_path / "boxes", FakeClock()).open()


def test_the_boxes_scheduler_implements_the_cluster_protocol(tmp_path):
    scheduler: ClusterScheduler = BoxesScheduler(tmp_path, FakeClock())
    assert scheduler.name == "boxes"


async def test_a_gang_gets_its_boxes_and_is_granted_once_all_have_started(world):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(2))
    told = await world.told()
    assert (told.state, told.reason) == (AllocationState.PENDING, "box1, box2 did not start its host yet")
    assert {index: member.is_alive for index, member in told.members.items()} == {0: True, 1: True}
    await world.obey("box1")
    assert (await world.told()).state is AllocationState.PENDING
    await world.obey("box2")
    told = await world.told()
    assert (told.state, told.reason) == (AllocationState.GRANTED, "")
    assert [told.members[index].node for index in (0, 1)] == ["box1", "box2"]
    assert [world.state(name)["state"] for name in ("box1", "box2")] == ["busy", "busy"]
    assert world.state("box1")["runs"][0]["job"] == "job-7"


async def test_a_repeated_request_adds_no_lease(world):
    await world.add("box1", "box2", "box3")
    for _ in range(3):
        await world.scheduler.ask(order(2))
        await world.obey()
    assert [world.state(name)["state"] for name in ("box1", "box2", "box3")] == ["busy", "busy", "ready"]


async def test_a_job_waits_with_a_reason_and_is_placed_once_the_first_has_ended(world):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(2))
    await world.obey()
    other = "pool_00000000000b"
    await world.scheduler.ask(order(1, tag=other, job="job-8"))
    told = await world.told(other)
    assert (told.state, told.members) == (AllocationState.PENDING, {})
    assert told.reason == "waits for 1 box: box1 runs job-7, box2 runs job-7"
    assert await world.scheduler.end(TAG) is Ended.ASKED_FOR
    told = await world.told()
    assert (told.state, told.reason) == (AllocationState.ENDING, "is being ended on box1, box2")
    assert (await world.told(other)).members == {}
    await world.obey("box2")
    assert (await world.told(other)).members[0].node == "box2"
    await world.obey()
    assert (await world.told()).state is AllocationState.GONE
    assert await world.scheduler.end(TAG) is Ended.CERTAIN
    assert await world.scheduler.end("pool_00000000dead") is Ended.CERTAIN


async def test_only_the_lost_host_of_a_gang_is_requested_again(world):
    await world.add("box1", "box2", "box3")
    await world.scheduler.ask(order(2))
    await world.obey()
    world.boxes["box2"].end("its agent was killed by signal 9")
    await world.obey("box2")
    told = await world.told()
    assert told.state is AllocationState.GRANTED
    assert (told.members[0].is_alive, told.members[1].is_alive) == (True, False)
    assert told.members[1].why_dead == "its agent was killed by signal 9"
    await world.scheduler.ask(order(2))
    await world.obey()
    told = await world.told()
    assert [told.members[index].node for index in (0, 1)] == ["box1", "box2"]
    assert told.members[1].is_alive


async def test_a_silent_box_loses_its_host_and_must_end_it_before_it_gets_another(world):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(1))
    await world.obey()
    world.clock.advance(10.0)
    await world.boxes["box2"].ask()
    assert (await world.told()).members[0].is_alive
    world.clock.advance(5.1)
    told = await world.told()
    assert (told.members[0].is_alive, told.members[0].why_dead) == (False, "box1 has not been heard of for 15 s")
    assert world.state("box1")["state"] == "silent"
    assert await world.scheduler.end_host(TAG, 0) is Ended.OUT_OF_REACH
    await world.scheduler.ask(order(1))
    await world.obey("box2")
    assert (await world.told()).members[0].node == "box2"
    assert (await world.told()).members[0].is_alive
    assert await world.scheduler.end_host(TAG, 0) is Ended.OUT_OF_REACH, "the first one may go on"

    orders = await world.boxes["box1"].ask()
    assert [one.wish for one in orders.leases] == ["end"]
    other = "pool_00000000000b"
    await world.scheduler.ask(order(1, tag=other))
    assert (await world.told(other)).members == {}, "box1 is not free before it has ended the old lease"
    await world.obey("box1")
    assert (await world.told(other)).members[0].node == "box1"


async def test_a_box_that_comes_back_in_time_keeps_its_host(world):
    await world.add("box1")
    await world.scheduler.ask(order(1))
    await world.obey()
    world.clock.advance(100.0)
    assert not (await world.told()).members[0].is_alive
    await world.obey()
    assert (await world.told()).members[0].is_alive


async def test_the_end_of_a_host_is_certain_once_its_box_has_reported_it(world):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(2))
    await world.obey()
    assert await world.scheduler.end_host(TAG, 1) is Ended.ASKED_FOR
    told = await world.told()
    assert [told.members[index].is_alive for index in (0, 1)] == [True, True], "it may run on for a moment"
    await world.obey("box2")
    told = await world.told()
    assert [told.members[index].is_alive for index in (0, 1)] == [True, False]
    assert await world.scheduler.end_host(TAG, 1) is Ended.CERTAIN
    assert await world.scheduler.end_host(TAG, 9) is Ended.CERTAIN


async def test_ending_a_host_waits_for_the_report_of_its_box(tmp_path):
    world = SpokenBoxes(tmp_path / "boxes", FakeClock())
    world.scheduler = BoxesScheduler(world.folder, world.clock, end_wait_s=20.0)
    await world.scheduler.start(BOOT)
    await world.add("box1")
    await world.scheduler.ask(order(1))
    await world.obey()
    ending = asyncio.create_task(world.scheduler.end_host(TAG, 0))
    await asyncio.sleep(0)
    while not any(one.wish == "end" for one in (await world.boxes["box1"].ask()).leases):
        await asyncio.sleep(0.01)
    assert not ending.done()
    await world.obey()
    assert await asyncio.wait_for(ending, 5.0) is Ended.CERTAIN


async def test_a_host_that_waits_is_ended_at_once(world):
    await world.scheduler.ask(order(2))
    assert await world.scheduler.end_host(TAG, 1) is Ended.CERTAIN
    await world.add("box1")
    assert (await world.told()).members.keys() == {0}
    assert await world.scheduler.end(TAG) is Ended.ASKED_FOR
    with pytest.raises(AllocationEnded, match="under a new tag"):
        await world.scheduler.ask(order(2))


async def test_a_drained_box_sends_its_agent_a_notice_and_gets_no_new_host(world):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(1))
    await world.obey()
    await world.scheduler.desk.drain("box1")
    assert [one.wish for one in (await world.boxes["box1"].ask()).leases] == ["notice"]
    member = (await world.told()).members[0]
    assert (member.is_alive, member.notice.kind) == (True, NoticeKind.DRAINED)
    assert member.notice.why == "box1 was drained by its owner"
    world.boxes["box1"].end()
    await world.obey("box1")
    assert (await world.told()).members[0].notice is None
    assert world.state("box1")["state"] == "drained"
    await world.scheduler.ask(order(1))
    assert (await world.told()).members[0].node == "box2"
    other = "pool_00000000000b"
    await world.scheduler.ask(order(1, tag=other))
    assert (await world.told(other)).reason == "waits for 1 box: box1 is drained, box2 runs job-7"
    await world.scheduler.desk.resume("box1")
    assert (await world.told(other)).members[0].node == "box1"


async def test_capacity_is_listed_by_kind_smallest_first(world):
    await world.add("gpu1", gpus=("GPU-a", "GPU-b"))
    await world.add("box1", "box2")
    await world.add("small", num_cpus=4, memory_bytes=8 * 1024**3, isolation="plain processes: no namespaces")
    await world.scheduler.ask(order(1, kind="8cpu-62gib"))
    kinds = await world.scheduler.capacity()
    assert [(kind.name, kind.num_nodes, kind.num_free, kind.num_gpus) for kind in kinds] == [
        ("4cpu-8gib", 1, 1, 0),
        ("8cpu-62gib", 2, 1, 0),
        ("8cpu-62gib-2gpu", 1, 1, 2),
    ]
    assert (kinds[1].maps_to, kinds[0].isolation) == ("boxes box1, box2", "plain processes: no namespaces")


async def test_a_proof_is_valid_only_for_its_host_while_the_host_is_wanted(world):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(2))
    proved = world.scheduler.why_not_proved
    assert proved(TAG, 0, "") == f"the proof is not the one that box1 made for host 0 of {TAG}"
    await world.obey()
    mine, others = world.boxes["box1"].proofs[TAG, 0], world.boxes["box2"].proofs[TAG, 1]
    assert proved(TAG, 0, mine) == ""
    assert proved(TAG, 0, mine) == "", "a boot asks again with the same proof"
    assert proved(TAG, 1, others) == ""
    assert proved(TAG, 0, others) == f"the proof is not the one that box1 made for host 0 of {TAG}"
    assert proved(TAG, 0, "\udcff") != ""
    assert proved(TAG, 2, mine) == f"no box has a lease of host 2 of {TAG}"
    assert proved("pool_00000000dead", 0, mine) == "no box has a lease of host 0 of pool_00000000dead"
    await world.scheduler.end_host(TAG, 0)
    assert proved(TAG, 0, mine) == f"no box has a lease of host 0 of {TAG}"


async def test_the_next_service_knows_all_leases_and_gives_boxes_time_to_reconnect(world):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(2))
    await world.obey()
    await world.scheduler.ask(order(1, tag="pool_00000000000b"))
    proof = world.boxes["box1"].proofs[TAG, 0]
    world.clock.advance(3600.0)
    await world.open()
    told = await world.told()
    assert (told.state, [told.members[index].is_alive for index in (0, 1)]) == (AllocationState.GRANTED, [True, True])
    assert world.scheduler.why_not_proved(TAG, 0, proof) == ""
    assert (await world.told("pool_00000000000b")).state is AllocationState.PENDING
    world.scheduler.desk.authorize("box1", world.boxes["box1"].token)
    world.clock.advance(15.1)
    assert not (await world.told()).members[0].is_alive
    await world.obey()
    assert (await world.told()).members[0].is_alive


async def test_after_a_restart_a_free_box_gets_no_host_before_its_first_report(world):
    await world.add("box1")
    await world.open()
    await world.scheduler.ask(order(1))
    assert (await world.told()).reason == "waits for 1 box: box1 is silent"
    await world.obey()
    assert (await world.told()).state is AllocationState.GRANTED


class Killed(Exception):
    """Stands in for SIGKILL."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 9))
async def test_a_service_killed_at_any_write_assigns_no_box_twice_and_loses_no_lease(
    tmp_path, monkeypatch, number, moment
):
    """Kill the service at each replacement of a file, for two gangs; the next service continues with the same calls."""
    from clary.control.engines.boxes import ledger

    world = await SpokenBoxes(tmp_path / "boxes", FakeClock()).open()
    await world.add("box1", "box2", "box3")
    left = [number]

    def dying(real):
        def change_or_die(*arguments):
            left[0] -= 1
            if left[0] == 0 and moment == "before":
                raise Killed
            real(*arguments)
            if left[0] == 0:
                raise Killed

        return change_or_die

    for name in ("replace_durably", "remove_durably"):
        monkeypatch.setattr(ledger, name, dying(getattr(ledger, name)))
    other = "pool_00000000000b"
    steps = [
        lambda: world.scheduler.ask(order(2)),
        lambda: world.obey(),
        lambda: world.scheduler.ask(order(2, tag=other)),
        lambda: world.scheduler.end(TAG),
        lambda: world.obey(),
        lambda: world.obey(),
    ]
    for step in steps:
        try:
            await step()
        except Killed:
            await world.open()
            for box in world.boxes.values():
                await box.ask()
            await step()
        taken = [row["name"] for row in world.scheduler.desk.page()["boxes"] for _ in row["runs"]]
        assert len(taken) == len(set(taken)), "one lease a box"
    await world.obey()
    assert left[0] < 0, "the fault was never reached"
    assert (await world.told()).state is AllocationState.GONE
    told = await world.told(other)
    assert (told.state, len(told.members)) == (AllocationState.GRANTED, 2)


async def test_an_order_that_could_not_be_written_was_never_made(world, monkeypatch):
    await world.add("box1")
    from clary.control.engines.boxes import ledger

    def full(path, text):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "replace_durably", full)
        with pytest.raises(EngineError, match="No space left on device; nothing has changed") as caught:
            await world.scheduler.ask(order(1))
    assert caught.value.retryable
    assert await world.scheduler.allocations() == {}
    await world.scheduler.ask(order(1))
    assert (await world.told()).members[0].node == "box1"


async def test_a_change_completes_when_its_caller_is_cancelled(world, monkeypatch):
    await world.add("box1")
    asking = asyncio.create_task(world.scheduler.ask(order(1)))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await world.scheduler.ask(order(1))
    await world.obey()
    assert (await world.told()).state is AllocationState.GRANTED
    stored = json.loads((world.folder / "allocations" / f"{TAG}.json").read_text())
    assert [lease["phase"] for lease in stored["leases"]] == ["running"]


async def test_ended_allocations_are_forgotten_after_a_while(world):
    await world.add("box1")
    await world.scheduler.ask(order(1))
    await world.obey()
    await world.scheduler.end(TAG)
    await world.obey()
    assert (await world.told()).state is AllocationState.GONE
    world.clock.advance(601.0)
    await world.obey()
    assert await world.told() is None
    assert list((world.folder / "allocations").iterdir()) == []


async def test_a_damaged_file_is_named(tmp_path):
    folder = tmp_path / "boxes"
    (folder / "boxes").mkdir(parents=True)
    (folder / "boxes" / "box1.json").write_text("{")
    with pytest.raises(EngineError, match=r"boxes/box1.json does not hold what the engine of boxes wrote there"):
        await BoxesScheduler(folder, FakeClock()).start(BOOT)


async def test_files_are_private_to_their_owner(world):
    await world.add("box1")
    await world.scheduler.ask(order(1))
    files = [path for path in world.folder.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["box1.json", f"{TAG}.json"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert world.boxes["box1"].token not in "".join(path.read_text() for path in files)


async def test_hosts_of_one_order_may_need_different_resources(world):
    await world.add("box1", "box2")
    await world.add("gpu", gpus=("GPU-a",))
    mixed = order(1)
    hosts = (wish(0, num_gpus=1), wish(1))
    await world.scheduler.ask(scheduler_module.AllocationOrder(**{**vars(mixed), "hosts": hosts}))
    told = await world.told()
    assert {index: member.node for index, member in told.members.items()} == {0: "gpu", 1: "box1"}
