"""The end of asyncio's child processes within a time limit, even if a child cannot be killed.

Where: engines and desks call it for children that are late or no longer needed. It is `base.limited_runs` for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from clary.base.limited_runs import END_S

logger = logging.getLogger(__name__)


async def end_child(process: asyncio.subprocess.Process, *, limit_s: float = END_S) -> bool:
    """Kill a child, and wait a short time for its end; return whether it has ended.

    A child that has not ended hangs in the kernel. It is abandoned: its pipes are closed, and the event loop waits for
    it in the background.

    Args:
        process: the child.
        limit_s: longest wait.
    """
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    try:
        async with asyncio.timeout(limit_s):
            await process.wait()
    except TimeoutError:
        logger.warning("process %d does not end after SIGKILL: it hangs in the kernel", process.pid)
        # Only the transport knows the pipes. Python 3.11 to 3.13 call it so; a test abandons a child.
        process._transport.close()  # type: ignore[attr-defined]
        return False
    return True
