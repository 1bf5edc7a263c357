"""Each client has a few turns at once; a client with more requests waits only for its own."""

import asyncio

import pytest

from clary.control.turns import Turns


async def test_a_client_waits_only_for_its_own_turns():
    turns = Turns(2)
    held = [await turns.take("a") for _ in range(2)]
    waiting = asyncio.create_task(turns.take("a"))
    other = await asyncio.wait_for(turns.take("b"), 1)
    assert not waiting.done()
    held.pop()()
    give_back = await asyncio.wait_for(waiting, 1)
    for give in (give_back, other, *held):
        give()
    assert len(turns) == 0


async def test_a_cancelled_wait_leaves_no_turn_taken():
    turns = Turns(1)
    async with turns.taken("a"):
        waiting = asyncio.create_task(turns.take("a"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert len(turns) == 0
    async with turns.taken("a"):
        assert len(turns) == 1


async def test_a_turn_is_returned_by_work_that_fails():
    turns = Turns(1)
    with pytest.raises(ValueError, match="no"):
        async with turns.taken("a"):
            raise ValueError("no")
    assert len(turns) == 0
