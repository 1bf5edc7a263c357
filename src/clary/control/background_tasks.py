"""Tasks of the service that are meant to last: one that ends with an error is logged and started again.

Where: every task that works in the background as long as the service runs is started by `keep_running`. Without that,
the first error that such a task does not expect would end it unseen, and the service would go on without its work: its
backups, its clean-ups, its clock of tuning jobs. Work therefore has to bear to be started again at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any

from clary.base.errors import ClaryError

FIRST_PAUSE_S = 1.0  # before the first new start; doubled after each further error
LONGEST_PAUSE_S = 60.0
STEADY_S = 300.0  # after a run of this length, the next pause is the first one again

REPEAT_S = 60.0  # between two lines on a failure that goes on

_log = logging.getLogger(__name__)


class FailureLog:
    """Logs failures of work that is soon tried again, each once a minute.

    While a database is away or a disk is full, such work fails several times a second. A line or a traceback each time
    would fill the disk and hide the other lines.

    Args:
        log: gets the lines.
        monotonic: clock in seconds.
    """

    def __init__(self, log: logging.Logger, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._monotonic = monotonic
        # (failed work, type of a defect) -> time of its last line, failures since then
        self._told: dict[tuple[str, type[Exception] | None], tuple[float, int]] = {}

    def tell(self, what: str, error: Exception) -> None:
        """Log that `what` failed: with its traceback, or in one line if the error says that a retry may succeed."""
        passes = error if isinstance(error, ClaryError) and error.retryable else None
        failure = (what, None if passes else type(error))
        now_s = self._monotonic()
        at_s, num_more = self._told.get(failure, (-math.inf, 0))
        if now_s - at_s < REPEAT_S:
            self._told[failure] = (at_s, num_more + 1)
            return
        again = f" ({num_more} more times since the last such line)" if num_more else ""
        if passes is not None:
            self._log.warning("%s%s: %s", what, again, passes.message)
        else:
            self._log.error("%s%s", what, again, exc_info=error)
        self._told = {known: told for known, told in self._told.items() if now_s - told[0] < 2 * REPEAT_S}
        self._told[failure] = (now_s, 0)


def keep_running(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Start a task that does `work` until that returns or the task is cancelled; after an error `work` is called again.

    Args:
        name: name of the task, for the log.
        work: begins the work; called again after each error.
    """
    return asyncio.create_task(_run(name, work), name=name)


async def _run(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    own = asyncio.current_task()
    assert own is not None, "this runs as a task"
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = time.monotonic()
        try:
            await work()
            return
        except (Exception, asyncio.CancelledError) as error:  # boundary: whatever the work did not expect
            if isinstance(error, asyncio.CancelledError) and own.cancelling():
                raise
            if time.monotonic() - began_s > STEADY_S:
                pause_s = FIRST_PAUSE_S
            _log.exception("background task %s ended with an error; it is started again in %.0f s", name, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
