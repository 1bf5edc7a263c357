"""The clock that stands still while the service is blocked, and checks only while a silence is counted."""

import asyncio

import pytest

from clary.control.attentive_clock import LISTEN_INTERVAL_S, AttentiveClock
from clary.testing.fake_clock import FakeClock


class World:
    def __init__(self):
        self.clock = FakeClock()
        self.attentive = AttentiveClock(self.clock)
        self.is_counting, self.begun = True, 0
        self.attentive.add_user(counts=lambda: self.is_counting, begin=self._begin)

    def _begin(self):
        self.begun += 1

    async def listen(self):
        self.listening = asyncio.create_task(self.attentive.keep_listening())
        await asyncio.sleep(0)

    async def close(self):
        self.listening.cancel()
        await asyncio.gather(self.listening, return_exceptions=True)


@pytest.fixture
def world():
    return World()


async def test_time_in_which_the_event_loop_did_not_run_does_not_pass(world):
    await world.listen()
    began_s = world.attentive.monotonic()
    world.clock.advance(30)
    assert world.attentive.monotonic() - began_s == pytest.approx(LISTEN_INTERVAL_S)
    world.clock.advance(0.05)
    assert world.attentive.monotonic() - began_s == pytest.approx(LISTEN_INTERVAL_S + 0.05)
    world.clock.advance(30)
    assert world.attentive.monotonic() - began_s < 1
    assert world.attentive.now() == world.clock.now()
    await world.close()


async def test_without_checks_all_time_passes(world):
    began_s = world.attentive.monotonic()
    world.clock.advance(30)
    assert world.attentive.monotonic() - began_s == 30
    await world.listen()
    await world.close()
    world.clock.advance(30)
    assert world.attentive.monotonic() - began_s == 60


async def test_users_begin_to_count_when_the_service_begins_to_listen(world):
    await world.listen()
    assert world.begun == 1
    await world.close()


async def test_an_idle_service_checks_nothing_until_a_user_wakes_it(world):
    world.is_counting = False
    await world.listen()
    began_s = world.attentive.monotonic()
    world.clock.advance(30)  # asleep, not blocked
    assert world.attentive.monotonic() - began_s == 30
    world.is_counting = True
    world.attentive.wake()
    await asyncio.sleep(0)
    world.clock.advance(30)
    assert world.attentive.monotonic() - began_s < 31
    await world.close()
