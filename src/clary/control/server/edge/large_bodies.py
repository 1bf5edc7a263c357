"""Runs the work on a body: at once, or in a thread if other requests would wait for long.

Where: the handlers of AWS requests and of agents' requests have one each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from clary.control.wire.messages import HttpRequest

LARGE_BODY_BYTES = 64 * 1024  # the work on a body of this size takes a few milliseconds

Run = Callable[..., Awaitable[Any]]  # runs a function with its arguments, at once or in a thread


class LargeBodies:
    """Works on large bodies one at a time: threads that parse slow each other down, and the event loop."""

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
