"""Bytes between a client and its target: both ways as they come, until both have ended or no byte passes any more.

Where: `connect_proxy` for CONNECT; `forwarding` for the answer to an http:// request.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

PIECE_BYTES = 256 * 1024
CLOSE_TIMEOUT_S = 2.0


class Activity:
    """Time of the last byte, in either direction."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._last_s = asyncio.get_running_loop().time()

    def note(self) -> None:
        """Record that bytes have passed."""
        self._last_s = asyncio.get_running_loop().time()

    async def ended(self) -> None:
        """Wait until no byte has passed for the idle timeout."""
        loop = asyncio.get_running_loop()
        while (left_s := self._last_s + self._idle_timeout_s - loop.time()) > 0:  # noqa: ASYNC110 - waits for a moment, no event
            await asyncio.sleep(left_s)


async def join(
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    *,
    idle_timeout_s: float,
) -> None:
    """Copy both ways until both directions have ended.

    Args:
        near: reader and writer of the client.
        far: reader and writer of the target.
        idle_timeout_s: longest time in which nothing passes in either direction.
    Raises: TimeoutError if nothing passes for `idle_timeout_s`; OSError if an end breaks off.
    """
    activity = Activity(idle_timeout_s)
    both = asyncio.gather(pump(near[0], far[1], activity), pump(far[0], near[1], activity))
    await until_idle(both, activity)


async def until_idle(work: asyncio.Future[Any], activity: Activity) -> None:
    """Wait for work, and cancel it once nothing has passed for too long; raises TimeoutError then."""
    watch: asyncio.Future[Any] = asyncio.ensure_future(activity.ended())
    try:
        await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise TimeoutError("nothing passed for too long")
        work.result()
    finally:
        for task in (work, watch):
            task.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, activity: Activity) -> None:
    """Copy until the end and pass the end on; the other direction stays open.

    A broken connection is not passed on as an end: the caller closes the other connection.

    Args:
        reader: where bytes come from.
        writer: where they go; its end is written when the reader's comes.
        activity: called for every piece.
    """
    while piece := await reader.read(PIECE_BYTES):
        activity.note()
        writer.write(piece)
        await writer.drain()
        activity.note()
    if writer.can_write_eof():
        writer.write_eof()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close one end, and wait at most CLOSE_TIMEOUT_S until its last bytes are sent."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await writer.wait_closed()
