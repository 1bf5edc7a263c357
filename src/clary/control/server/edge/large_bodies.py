"""Runs the processing of a body: inline, or in a thread if other requests would wait too long.

Where: `aws_handler` and `clary_handler` have one `LargeBodies` each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from clary.control.wire.messages import HttpRequest

LARGE_BODY_BYTES = 64 * 1024  # processing a body of this size takes a few milliseconds

Run = Callable[..., Awaitable[Any]]  # runs a function with its arguments, inline or in a thread


class LargeBodies:
    """Processes large bodies one at a time, because parsing threads slow down each other and the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    @asynccontextmanager
    async def runner(self, request: HttpRequest) -> AsyncIterator[Run]:
        """Yield a function that runs a given function on the request's body, inline or in a thread.

        Only one large body can be processed inside the `with` block at a time.
        """
        if len(request.body) <= LARGE_BODY_BYTES and not (request.body and request.header("content-encoding")):
            yield _at_once
            return
        async with self._turn:
            yield asyncio.to_thread


async def _at_once(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)
