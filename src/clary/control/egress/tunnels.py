"""Copies bytes between a client and its target in both directions, until both have ended or are idle too long.

Where: `connect_proxy` uses it for CONNECT, `forwarding` for the answer to an http:// request.
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
        """Record that bytes were copied."""
        self._last_s = asyncio.get_running_loop().time()

    async def ended(self) -> None:
        """Wait until no byte was copied for the idle timeout."""
        loop = asyncio.get_running_loop()
        while (left_s := self._last_s + self._idle_timeout_s - loop.time()) > 0:  # noqa: ASYNC110 - waits for a moment, no event
            await asyncio.sleep(left_s)


async def join(
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    *,
    idle_timeout_s: float,
) -> None:
    """Copy bytes in both directions until both have ended.

    Args:
        near: reader and writer of the client's connection.
        far: reader and writer of the target's connection.
        idle_timeout_s: longest time without a byte in either direction.
    Raises: TimeoutError after `idle_timeout_s` without a byte; OSError if a connection breaks.
    """
    activity = Activity(idle_timeout_s)
    both = asyncio.gather(pump(near[0], far[1], activity), pump(far[0], near[1], activity))
    await until_idle(both, activity)


async def until_idle(work: asyncio.Future[Any], activity: Activity) -> None:
    """Wait for work; cancel it and raise TimeoutError once no byte was copied for too long."""
    watch: asyncio.Future[Any] = asyncio.ensure_future(activity.ended())
    try:
        await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise TimeoutError("no bytes were transferred for too long")
        work.result()
    finally:
        for task in (work, watch):
            task.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, activity: Activity) -> None:
    """Copy bytes until the stream ends, and forward its end; the other direction stays open.

    A broken connection is not forwarded as an end: the caller closes the other connection.

    Args:
        reader: source of the bytes.
        writer: target of the bytes; its end is written at the reader's end.
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
    """Close a connection, and wait at most CLOSE_TIMEOUT_S until its last bytes are sent."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await writer.wait_closed()
