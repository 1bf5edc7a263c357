"""Logs the wait for a step of the start that may take minutes, and cancels the step when the service has to stop.

Where: `foundations`, around the start of the object store. `clary up` shows the last line of the log, and treats new
lines as signs of life, so use this only for steps that detect their own failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from clary.base.errors import ClaryError

NOTE_INTERVAL_S = 10.0

Outcome = TypeVar("Outcome")

_log = logging.getLogger(__name__)


async def noted(
    step: Coroutine[Any, Any, Outcome], *, what: str, leave: asyncio.Event, interval_s: float = NOTE_INTERVAL_S
) -> Outcome:
    """Return the result of a step; log at intervals that the start waits for it.

    Args:
        step: the step, which is cancelled and awaited if this function is cancelled or `leave` is set.
        what: name of the step, for the log.
        leave: set when the service has to stop.
        interval_s: seconds between lines of the log.
    Raises: ClaryError if the service has to stop before the step has ended; errors of the step.
    """
    began_s = time.monotonic()
    work = asyncio.ensure_future(step)
    leaving = asyncio.ensure_future(leave.wait())
    try:
        while not (await asyncio.wait((work, leaving), timeout=interval_s, return_when=asyncio.FIRST_COMPLETED))[0]:
            _log.info("the start waits for %s, for %.0f s until now", what, time.monotonic() - began_s)
        if not work.done():
            raise ClaryError(f"the service was told to stop while it waited for {what}")
        return work.result()
    finally:
        for task in (work, leaving):
            task.cancel()
        await asyncio.gather(work, leaving, return_exceptions=True)
