"""Slow steps of the start: the log lines during a step, and the exit of a service that is stopped during a step."""

import asyncio
import logging

import pytest

from clary.base.errors import ClaryError
from clary.control.server.start_notes import noted


async def run_noted(step, *, leave_after_s=None):
    leave = asyncio.Event()
    if leave_after_s is not None:
        asyncio.get_running_loop().call_later(leave_after_s, leave.set)
    return await noted(step, what="the object store", leave=leave, interval_s=0.02)


async def test_a_long_step_is_logged_repeatedly_until_it_has_ended(caplog):
    async def long_step():
        await asyncio.sleep(0.2)
        return "served"

    with caplog.at_level(logging.INFO):
        assert await run_noted(long_step()) == "served"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) >= 3
    assert all(line.startswith("the start waits for the object store, for ") for line in said)


async def test_a_short_step_is_not_logged(caplog):
    with caplog.at_level(logging.INFO):
        assert await run_noted(asyncio.sleep(0, "served")) == "served"
    assert not caplog.records


async def test_a_service_that_is_stopped_waits_for_the_end_of_the_cancelled_step():
    ended = []

    async def step():
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.02)  # the store's process takes some time to end, too
            ended.append(True)

    with pytest.raises(ClaryError, match="told to stop while it waited for the object store"):
        await run_noted(step(), leave_after_s=0.01)
    assert ended


async def test_an_exception_of_a_step_is_raised():
    async def step():
        raise ClaryError("no program 'weed'")

    with pytest.raises(ClaryError, match="no program 'weed'"):
        await run_noted(step())
