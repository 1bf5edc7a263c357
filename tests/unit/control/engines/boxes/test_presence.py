"""Silence of boxes, and reports that arrive late."""

import asyncio

import pytest
from spoken_boxes import BOOT, TAG, SpokenBoxes, order

from clary.contract.box_protocol import LeasePhase
from clary.control.attentive_clock import AttentiveClock
from clary.control.engines.boxes.presence import SILENCE_S
from clary.control.engines.boxes.scheduler import BoxesScheduler
from clary.testing.fake_clock import FakeClock


class ListeningBoxes(SpokenBoxes):
    """A service that detects when it is blocked."""

    async def open(self):
        self.attentive = AttentiveClock(self.clock)
        self.scheduler = BoxesScheduler(self.folder, self.clock, end_wait_s=0.0, attentive=self.attentive)
        await self.scheduler.start(BOOT)
        self.listening = asyncio.create_task(self.attentive.keep_listening())
        return self


@pytest.fixture
async def world(tmp_path):
    world = await ListeningBoxes(tmp_path, FakeClock()).open()
    yield world
    world.listening.cancel()
    await asyncio.gather(world.listening, return_exceptions=True)


async def test_a_pause_of_the_service_loses_no_host(world):
    await world.add("box1")
    await world.scheduler.ask(order(1))
    await world.obey()
    await asyncio.sleep(0)
    for _ in range(3):
        world.clock.advance(60.0)  # the event loop did not run in these seconds
        assert (await world.told()).members[0].is_alive
        assert world.state("box1")["silent_s"] < 1
    await world.boxes["box1"].ask()
    assert (await world.told()).members[0].is_alive


async def test_a_box_that_is_silent_while_the_service_listens_loses_its_host(world):
    await world.add("box1")
    await world.scheduler.ask(order(1))
    await world.obey()
    await asyncio.sleep(0)
    world.listening.cancel()  # without checks, all time counts
    await asyncio.gather(world.listening, return_exceptions=True)
    world.clock.advance(SILENCE_S + 0.1)
    assert not (await world.told()).members[0].is_alive


async def test_a_service_without_leases_does_not_check_whether_it_is_blocked(world):
    await world.add("box1")
    await asyncio.sleep(0)
    world.clock.advance(SILENCE_S + 0.1)
    assert world.state("box1")["state"] == "silent"


async def test_a_late_report_of_a_replaced_daemon_ends_no_host(world):
    await world.add("box1")
    box = world.boxes["box1"]
    late = box.report()
    box.run = "second"
    await world.scheduler.ask(order(1))
    await world.obey()
    await world.scheduler.desk.orders("box1", late, "10.0.0.9")
    orders = await box.ask()
    assert [one.wish for one in orders.leases] == ["run"]
    assert (await world.told()).members[0].is_alive


async def test_a_daemon_that_was_taken_for_a_replaced_one_is_believed_soon(world):
    await world.add("box1")
    box = world.boxes["box1"]
    late = box.report()
    world.listening.cancel()
    await asyncio.gather(world.listening, return_exceptions=True)
    await world.open()  # the next service knows no earlier daemon
    box.scheduler, box.run = world.scheduler, "second"
    await box.ask()
    await world.scheduler.desk.orders("box1", late, "10.0.0.9")
    await world.scheduler.ask(order(1))
    for _ in range(2):
        await box.ask()
    await world.obey()
    (lease,) = box.leases.values()
    assert lease.phase is LeasePhase.RUNNING
    assert (await world.told(TAG)).members[0].is_alive
