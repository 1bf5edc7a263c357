"""The output of asyncio's child processes within a limit, and their end in time, even if a child cannot be killed.

Where: engines and desks call it for the children that they run. It is `base.limited_runs` for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from clary.base.limited_runs import END_S, MAX_OUTPUT_BYTES, OutputTooLong

_READ_BYTES = 65536

logger = logging.getLogger(__name__)


async def read_output(
    process: asyncio.subprocess.Process, program: str, *, most_bytes: int = MAX_OUTPUT_BYTES
) -> tuple[bytes, bytes]:
    """Read a child's output and error output to their ends, and wait for its end; the caller limits the time.

    Args:
        process: the child; a stream that is not a pipe counts as empty.
        program: its name, for the error.
        most_bytes: of both streams together.
    Raises: OutputTooLong, after which the caller ends the child.
    """
    num_left = most_bytes

    async def read(stream: asyncio.StreamReader | None) -> bytes:
        nonlocal num_left
        data = bytearray()
        while stream is not None and (part := await stream.read(_READ_BYTES)):
            data += part
            num_left -= len(part)
            if num_left < 0:
                raise OutputTooLong(program, most_bytes)
        return bytes(data)

    readers = [asyncio.ensure_future(read(stream)) for stream in (process.stdout, process.stderr)]
    try:
        output, errors = await asyncio.gather(*readers)
    finally:
        for reader in readers:
            reader.cancel()
    await process.wait()
    return output, errors


async def end_child(process: asyncio.subprocess.Process, *, limit_s: float = END_S) -> bool:
    """Kill a child, and wait a short time for its end; return whether it has ended.

    Its pipes are closed. A child that has not ended hangs in the kernel. It is abandoned: the event loop waits for it
    in the background.

    Args:
        process: the child.
        limit_s: longest wait.
    """
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    # `wait` waits for the ends of the pipes too. That of a pipe with unread output, or with another process at its
    # other side, may never come.
    transport = process._transport  # type: ignore[attr-defined]  # so called in Python 3.11 to 3.13; a test abandons a child
    for pipe in filter(None, map(transport.get_pipe_transport, (0, 1, 2))):
        pipe.close()
    try:
        async with asyncio.timeout(limit_s):
            await process.wait()
    except TimeoutError:
        logger.warning("process %d does not end after SIGKILL: it hangs in the kernel", process.pid)
        transport.close()
        return False
    return True
