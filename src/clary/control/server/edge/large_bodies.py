"""Where the work on a body is done: at once, or in a thread where it takes so long that other requests would wait.

Where: handlers of AWS requests and of agents' requests, each with one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from clary.control.wire.messages import HttpRequest

LARGE_BODY_BYTES = 64 * 1024  # of this size a body takes a few milliseconds

Run = Callable[..., Awaitable[Any]]  # a function and its arguments, at once or in a thread


class LargeBodies:
    """Works on large bodies one at a time: threads that parse hold each other up, and the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    @asynccontextmanager
    async def runner(self, request: HttpRequest) -> AsyncIterator[Run]:
        """Yield a function that runs others on a request's body; a large body holds its turn until the block ends."""
        if len(request.body) <= LARGE_BODY_BYTES and not (request.body and request.header("content-encoding")):
            yield _at_once
            return
        async with self._turn:
            yield asyncio.to_thread


async def _at_once(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)
