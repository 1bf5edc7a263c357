"""Tasks of the service that are meant to last: one that ends with an error is logged and started again.

Where: every task that works in the background as long as the service runs is started by `keep_running`. Without that,
the first error that such a task does not expect would end it unseen, and the service would go on without its work: its
backups, its clean-ups, its clock of tuning jobs. Work therefore has to bear to be started again at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

FIRST_PAUSE_S = 1.0  # before the first new start; doubled after each further error
LONGEST_PAUSE_S = 60.0
STEADY_S = 300.0  # after a run of this length, the next pause is the first one again

_log = logging.getLogger(__name__)


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
