"""Forwards one http:// request of a proxy client to its target; body and answer are streamed.

Where: `connect_proxy` calls it for targets that the policy allows: package installers and HTTP libraries send http://
URLs to a proxy in this way and never by CONNECT. A connection carries one request: the next request may have another
target, which the policy has to check first.
"""

from __future__ import annotations

import asyncio
import re

from clary.control.egress import heads, tunnels
from clary.control.egress.heads import Asked, BadHead
from clary.control.egress.tunnels import PIECE_BYTES, Activity

MAX_CHUNK_LINE_BYTES = 1024
MAX_TRAILERS = 64
FIRST_STATUS_OF_ANSWERS = 200
SWITCHING_PROTOCOLS = 101

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\r\n]*)?\r\n")

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def forward(asked: Asked, near: Ends, far: Ends, *, idle_timeout_s: float) -> None:
    """Forward the request to the target and the answer to the client.

    Args:
        asked: the client's request, whose head was already read.
        near: reader and writer of the client's connection.
        far: reader and writer of the target's connection.
        idle_timeout_s: longest time without a byte in either direction.
    Raises: BadHead for ambiguous HTTP, before any byte of the final answer was sent; TimeoutError after
        `idle_timeout_s` without a byte; OSError or IncompleteReadError if a connection breaks.
    """
    length = heads.body_length(asked)
    activity = Activity(idle_timeout_s)
    far[1].write(heads.request_head(asked))
    await tunnels.until_idle(asyncio.ensure_future(_exchange(near, far, length, activity)), activity)


async def _exchange(near: Ends, far: Ends, length: int | None, activity: Activity) -> None:
    sending = asyncio.ensure_future(_send_body(near[0], far[1], length, activity))
    answering = asyncio.ensure_future(_answer(near[1], far[0], activity))
    try:
        await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            sending.result()
        # A target may answer before it has read the whole body; the rest of the body is then dropped.
        await answering
    finally:
        for task in (sending, answering):
            task.cancel()
        await asyncio.gather(sending, answering, return_exceptions=True)


async def _answer(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, activity: Activity) -> None:
    status = 0
    while status < FIRST_STATUS_OF_ANSWERS:
        status, head = heads.answer_head(await reader.readuntil(b"\r\n\r\n"))
        if status == SWITCHING_PROTOCOLS:
            raise BadHead("the target wants to speak another protocol; use CONNECT for that")
        activity.note()
        writer.write(head)
        await writer.drain()
    await tunnels.pump(reader, writer, activity)


async def _send_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int | None, activity: Activity
) -> None:
    if length is not None:
        await _copy(reader, writer, length, activity)
        return
    while True:
        line = await _line(reader)
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise ConnectionError("a chunk of the body has no size")
        writer.write(line)
        if int(size[1], 16) == 0:
            break
        await _copy(reader, writer, int(size[1], 16) + len(b"\r\n"), activity)
    for _ in range(MAX_TRAILERS):
        line = await _line(reader)
        writer.write(line)
        if line == b"\r\n":
            break
    await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int, activity: Activity) -> None:
    while count:
        piece = await reader.read(min(count, PIECE_BYTES))
        if not piece:
            raise ConnectionError("the client ended in the middle of a body")
        count -= len(piece)
        activity.note()
        writer.write(piece)
        await writer.drain()


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readuntil(b"\n")
    if len(line) > MAX_CHUNK_LINE_BYTES:
        raise ConnectionError("a line between chunks is too long")
    return line
