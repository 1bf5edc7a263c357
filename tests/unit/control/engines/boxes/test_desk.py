"""Requests of boxes and of their owner: tokens, long polls for orders, joining, removal, impossible reports."""

import asyncio
from dataclasses import replace

import pytest
from spoken_boxes import BOOT, TAG, SpokenBoxes, facts, new_box, order

from clary.base.errors import WireError
from clary.contract.box_protocol import LeasePhase, LeaseReport
from clary.control.engines.boxes.desk import MAX_JOIN_TOKENS, BoxDesk, require_desk
from clary.control.engines.boxes.lease_book import GPUS_LIMIT_S
from clary.control.engines.cluster.scheduler import AllocationState
from clary.testing.fake_clock import FakeClock


@pytest.fixture
async def world(tmp_path):
    return await SpokenBoxes(tmp_path / "boxes", FakeClock()).open()


@pytest.fixture
def desk(world):
    return world.scheduler.desk


async def refusal(call):
    async def carried_out():
        answer = call()
        return await answer if asyncio.iscoroutine(answer) else answer

    with pytest.raises(WireError) as caught:
        await carried_out()
    return caught.value.http_status, caught.value.message


async def test_a_token_is_valid_for_its_own_box_until_it_is_replaced(world, desk):
    await world.add("box1", "box2")
    old = world.boxes["box1"].token
    desk.authorize("box1", old)
    wrong = 403, "the token does not open box box2"
    assert await refusal(lambda: desk.authorize("box2", old)) == wrong
    assert await refusal(lambda: desk.authorize("box2", "\udcff")) == wrong
    assert await refusal(lambda: desk.authorize("box9", old)) == (410, "there is no box 'box9': it was removed")
    again = await desk.add(new_box("box1"))
    assert (again.service_url, again.ca_pem, len(again.token)) == (BOOT.service_url, BOOT.ca_pem, 64)
    desk.authorize("box1", again.token)
    assert (await refusal(lambda: desk.authorize("box1", old)))[0] == 403


async def test_before_the_engine_has_started_boxes_get_503_instead_of_a_removal(world):
    desk = BoxDesk(world.scheduler._book, FakeClock())
    assert (await refusal(lambda: desk.authorize("box1", "x")))[0] == 503


async def test_a_service_with_another_engine_names_the_setting_for_boxes():
    told = "this service gets its hosts from slurm; start it with: clary up --engine boxes"
    assert await refusal(lambda: require_desk(None, "slurm")) == (409, told)


async def test_a_box_that_was_added_twice_keeps_its_leases(world, desk):
    await world.add("box1")
    await world.scheduler.ask(order(1))
    await world.obey()
    await desk.add(new_box("box1", num_cpus=16))
    assert (await world.told()).members[0].is_alive
    assert world.state("box1")["num_cpus"] == 16


async def test_a_box_that_was_added_again_is_not_heard_until_its_new_daemon_reports(world, desk):
    await world.add("box1")
    assert (world.state("box1")["was_heard"], world.state("box1")["state"]) == (True, "ready")
    again = await desk.add(new_box("box1"))
    row = world.state("box1")
    assert (row["was_heard"], row["state"]) == (False, "silent")
    assert row["why"] == "its daemon was replaced, and has not asked yet"
    world.boxes["box1"].token = again.token
    await world.boxes["box1"].ask()
    assert (world.state("box1")["was_heard"], world.state("box1")["state"]) == (True, "ready")


async def test_names_and_machines_belong_together(world, desk):
    await world.add("box1")
    status, words = await refusal(lambda: desk.add(new_box("box1", hostname="another")))
    assert (status, words.partition(":")[0]) == (409, "box1 is another machine (host box1, user ml)")
    told = 409, "this machine is box box1 already; add it under that name"
    assert await refusal(lambda: desk.add(new_box("box2", hostname="box1"))) == told
    for name in ("", "../box", "-box", "a/b", "a b", "x" * 64, "box\n"):
        status, words = await refusal(lambda name=name: desk.add(replace(new_box("b"), name=name)))
        assert (status, words.partition(":")[0]) == (400, "name")
    assert (await refusal(lambda: desk.add(replace(new_box("b"), machine="x"))))[0] == 400


async def test_a_poll_for_orders_waits_for_orders_newer_than_a_version(world, desk):
    await world.add("box1", "box2")
    version = (await world.boxes["box1"].ask()).version
    waiting = asyncio.create_task(world.boxes["box1"].ask(wait_s=5.0, after=version))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await world.scheduler.ask(order(1))
    orders = await asyncio.wait_for(waiting, 2.0)
    assert [one.index for one in orders.leases] == [0]
    assert orders.version > version
    began = asyncio.get_running_loop().time()
    await world.boxes["box2"].ask(wait_s=0.1, after=(await world.boxes["box2"].ask()).version)
    assert 0.1 <= asyncio.get_running_loop().time() - began < 2.0


async def test_a_poll_for_orders_ends_at_once_while_the_service_stops(world, desk):
    await world.add("box1")
    version = (await world.boxes["box1"].ask()).version
    waiting = asyncio.create_task(world.boxes["box1"].ask(wait_s=5.0, after=version))
    await asyncio.sleep(0.02)
    await world.scheduler.close()
    await asyncio.wait_for(waiting, 2.0)
    await asyncio.wait_for(world.boxes["box1"].ask(wait_s=5.0, after=(await world.boxes["box1"].ask()).version), 2.0)


async def test_an_outdated_report_changes_nothing(world, desk):
    await world.add("box1")
    await world.scheduler.ask(order(1))
    box = world.boxes["box1"]
    early = box.report()
    await world.obey()
    await desk.orders("box1", early, "")
    assert (await world.told()).state is AllocationState.GRANTED
    box.run, box.number = "second", 0
    box.end("rebooted")
    await box.ask()
    assert not (await world.told()).members[0].is_alive


async def test_a_box_without_records_ends_leases_that_it_cannot_name(world):
    await world.add("box1")
    await world.scheduler.ask(order(1))
    await world.obey()
    box = world.boxes["box1"]
    box.leases = {}
    assert [one.wish for one in (await box.ask()).leases] == ["end"]
    await world.obey()
    member = (await world.told()).members[0]
    assert (member.is_alive, member.why_dead) == (False, "the daemon of box1 has no record of it any more")
    assert world.state("box1")["state"] == "ready"


async def test_a_report_on_the_lease_of_another_box_changes_nothing(world):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(1))
    await world.obey()
    [lease] = world.boxes["box1"].leases
    world.boxes["box2"].leases = {lease: LeaseReport(lease=lease, phase=LeasePhase.GONE, why="a lie")}
    assert (await world.boxes["box2"].ask()).leases == ()
    assert (await world.told()).members[0].is_alive


async def test_a_removed_box_ends_its_leases_and_is_then_forgotten(world, desk):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(1))
    await world.obey()
    await desk.remove("box1", is_forced=False)
    assert world.state("box1")["why"] == "ends what it runs"
    assert (await refusal(lambda: desk.add(new_box("box1"))))[0] == 409
    box = world.boxes["box1"]
    assert [one.wish for one in (await box.ask()).leases] == ["end"]
    box.end()
    assert await refusal(box.ask) == (410, "box box1 was removed")
    assert (await world.told()).members[0].why_dead == "box1 was removed by its owner"
    assert await refusal(lambda: desk.authorize("box1", box.token)) == (410, "there is no box 'box1': it was removed")
    assert [row["name"] for row in desk.page()["boxes"]] == ["box2"]
    await world.scheduler.ask(order(1))
    assert (await world.told()).members[0].node == "box2"


async def test_a_silent_box_is_removed_when_it_answers_or_by_force(world, desk):
    await world.add("box1", "box2")
    await world.scheduler.ask(order(1))
    await world.obey()
    world.clock.advance(20.0)
    await desk.remove("box1", is_forced=False)
    assert world.state("box1")["state"] == "gone"
    assert world.state("box1")["why"].startswith("not heard of for 20 s; it goes when it answers")
    await desk.remove("box1", is_forced=True)
    assert [row["name"] for row in desk.page()["boxes"]] == ["box2"]
    told = (await world.told()).members[0]
    assert (told.is_alive, told.why_dead) == (False, "box1 was removed by its owner, and could not be asked")
    await world.open()
    assert [row["name"] for row in world.scheduler.desk.page()["boxes"]] == ["box2"]


async def test_an_action_on_an_unknown_box_is_an_error(desk):
    told = 404, "there is no box 'box9'; see: clary hosts"
    for call in (desk.drain, desk.resume, lambda name: desk.remove(name, is_forced=True)):
        assert await refusal(lambda call=call: call("box9")) == told


async def test_a_token_lets_one_machine_join_once_and_in_time(world, desk):
    made = await desk.join_token(60.0)
    assert made["service_url"] == BOOT.service_url
    desk.authorize_joining(made["token"])
    assert (await refusal(lambda: desk.authorize_joining("wrong")))[0] == 403
    bad = replace(new_box("box1"), machine="x")
    assert (await refusal(lambda: desk.join(made["token"], bad)))[0] == 400
    admission = await desk.join(made["token"], new_box("box1"))
    desk.authorize("box1", admission.token)
    status, words = await refusal(lambda: desk.join(made["token"], new_box("box2")))
    assert (status, words.partition(":")[0]) == (403, "the token does not let a box join")
    late = await desk.join_token(60.0)
    world.clock.advance(60.0)
    assert (await refusal(lambda: desk.authorize_joining(late["token"])))[0] == 403
    assert late["token"] not in "".join(path.read_text() for path in world.folder.rglob("*.json"))


async def test_tokens_for_joining_are_few_and_short_lived(world, desk):
    for valid_s in (0, -1, 8 * 86_400, float("nan"), float("inf"), 10**400):
        assert (await refusal(lambda valid_s=valid_s: desk.join_token(valid_s)))[0] == 400
    for _ in range(MAX_JOIN_TOKENS):
        await desk.join_token(60.0)
    assert (await refusal(lambda: desk.join_token(60.0)))[0] == 429
    world.clock.advance(61.0)
    await desk.join_token(60.0)
    assert len(list((world.folder / "join-tokens").iterdir())) == 1


async def test_a_daemon_that_does_not_know_its_gpus_yet_takes_none_from_its_box(world, desk):
    await world.add("box1", gpus=("GPU-1", "GPU-2"))
    box = world.boxes["box1"]
    box.facts = replace(box.facts, gpus=None)
    await box.ask()
    await desk.add(replace(new_box("box1"), facts=box.facts))
    await box.ask()
    row = world.state("box1")
    assert (row["gpus"], row["kind"], row["state"]) == (["GPU-1", "GPU-2"], "8cpu-62gib-2gpu", "ready")
    box.facts = replace(box.facts, gpus=())
    await box.ask()
    assert (world.state("box1")["gpus"], world.state("box1")["kind"]) == ([], "8cpu-62gib")


async def test_a_new_box_gets_no_host_until_it_has_told_its_gpus(world):
    await world.add("box1", gpus=None)
    await world.scheduler.ask(order(1))
    row = world.state("box1")
    assert (row["state"], row["gpus"], row["kind"]) == ("unknown", None, "8cpu-62gib-unknown")
    assert row["why"].startswith("its driver has not reported its GPUs yet")
    assert (await world.told()).reason == "waits for 1 box: box1 has not reported its GPUs yet"
    (kind,) = await world.scheduler.capacity()
    assert (kind.num_free, kind.why_unsure) == (0, "box1 has not reported its GPUs yet")
    world.boxes["box1"].facts = facts("box1", gpus=("GPU-1",))
    await world.obey()
    assert world.state("box1")["state"] == "busy"
    (kind,) = await world.scheduler.capacity()
    assert (kind.name, kind.num_gpus, kind.why_unsure) == ("8cpu-62gib-1gpu", 1, "")


async def test_a_new_box_whose_driver_never_answers_counts_as_one_without_gpus_in_the_end(world):
    await world.add("box1", gpus=None)
    await world.scheduler.ask(order(1))
    world.clock.advance(GPUS_LIMIT_S + 1)
    await world.obey()
    row = world.state("box1")
    assert (row["state"], row["gpus"], row["kind"]) == ("busy", None, "8cpu-62gib")


async def test_a_report_on_files_that_cannot_be_read_changes_nothing_but_the_reason(world):
    await world.add("box1")
    await world.scheduler.ask(order(1))
    box = world.boxes["box1"]
    (lease,) = [one.lease for one in (await box.ask()).leases]
    unread = LeaseReport(lease=lease, phase=LeasePhase.PLACED, why="its files cannot be used")
    box.leases = {lease: unread}
    await box.ask()
    assert (await world.told()).reason == "box1 did not start its host yet: its files cannot be used"
    box.leases = {}
    await box.obey()
    assert (await world.told()).state is AllocationState.GRANTED
    box.leases = {lease: unread}
    await box.ask()
    assert ((await world.told()).state, (await world.told()).members[0].is_alive) == (AllocationState.GRANTED, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_cpus": 0},
        {"memory_bytes": -1},
        {"gpus": tuple("x" * 65)},
        {"hostname": "x" * 401},
        {"isolation": "\x1b[31m"},
        {"user": "a\nb"},
    ],
)
async def test_facts_that_no_machine_has_are_refused(world, desk, changes):
    await world.add("box1")
    box = world.boxes["box1"]
    box.facts = facts("box1", **changes)
    assert (await refusal(box.ask))[0] == 400
    assert (await refusal(lambda: desk.add(replace(new_box("box2"), facts=box.facts))))[0] == 400


@pytest.mark.parametrize(
    "changes",
    [
        {"daemon": "x"},
        {"wait_s": float("nan")},
        {"run": "x" * 401},
        {"leases": tuple(LeaseReport(lease=f"l{number}", phase=LeasePhase.GONE) for number in range(65))},
        {"leases": (LeaseReport(lease="l", phase=LeasePhase.GONE, why="\x07"),)},
        {"leases": (LeaseReport(lease="l", phase=LeasePhase.RECORDED, proof_digest="x"),)},
    ],
)
async def test_reports_that_no_daemon_makes_are_refused(world, desk, changes):
    await world.add("box1")
    report = replace(world.boxes["box1"].report(), **changes)
    assert (await refusal(lambda: desk.orders("box1", report, "")))[0] == 400


async def test_the_boots_source_can_be_fetched_by_its_digest(desk):
    assert desk.boot_source(desk.boot_digest) == b"print('boot')"
    assert (await refusal(lambda: desk.boot_source("0" * 64)))[0] == 404


async def test_waiting_requests_are_on_the_owners_page(world, desk):
    await world.add("box1")
    await world.scheduler.ask(order(2))
    assert desk.page()["waiting"] == [
        "job-7 waits for 2 boxes with 1 CPUs: 1 of 1 would do; add more with: clary hosts add USER@BOX"
    ]
    assert world.state("box1")["address"] == "10.0.0.9"
    await world.scheduler.end(TAG)
    assert desk.page()["waiting"] == []
