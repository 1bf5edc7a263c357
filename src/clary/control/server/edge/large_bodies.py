"""Runs the processing of a body: inline, or in a thread if other requests would wait too long.

Where: `aws_handler` and `clary_handler` have one `LargeBodies` each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from clary.control.turns import Turns
from clary.control.wire.messages import HttpRequest
from clary.control.wire.models import Protocol
from clary.control.wire.routing import protocol_of

LARGE_BODY_BYTES = 64 * 1024  # processing a body of this size takes a few milliseconds
LARGE_SLOW_BYTES = 4 * 1024  # the same for a body that our own parser reads in Python, value by value
_SLOW = frozenset({Protocol.RPC_V2_CBOR, Protocol.QUERY})

Run = Callable[..., Awaitable[Any]]  # runs a function with its arguments, inline or in a thread


class LargeBodies:
    """Processes large bodies one at a time, because parsing threads slow down each other and the event loop.

    An address has one body that waits for this turn or has it, so that it delays others by one body only.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._turns_of_one = Turns(1)

    @asynccontextmanager
    async def runner(self, request: HttpRequest) -> AsyncIterator[Run]:
        """Yield a function that runs a given function on the request's body, inline or in a thread.

        Only one large body can be processed inside the `with` block at a time.
        """
        if not _is_large(request):
            yield _at_once
            return
        async with self._turns_of_one.taken(request.remote), self._turn:
            yield asyncio.to_thread


def _is_large(request: HttpRequest) -> bool:
    most = LARGE_SLOW_BYTES if protocol_of(request) in _SLOW else LARGE_BODY_BYTES
    return len(request.body) > most or bool(request.body and request.header("content-encoding"))


async def _at_once(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)
