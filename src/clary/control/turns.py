"""Turns of clients: a few calls of each client run at once, and its further calls wait for them.

Where: it shares the name resolution threads and the handlers of AWS's API among clients. Without it, one client could
use up the budget of all clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class _Client:
    def __init__(self, at_once: int) -> None:
        self.turns = asyncio.Semaphore(at_once)
        self.num_asked = 0  # calls that wait for a turn or have one


class Turns:
    """Grants turns to clients.

    Args:
        at_once: maximum number of turns that one client has at once.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._clients: dict[str, _Client] = {}  # only clients that wait or have a turn

    def __len__(self) -> int:
        """Return the number of clients that wait or have a turn."""
        return len(self._clients)

    async def take(self, name: str) -> Callable[[], None]:
        """Wait for a client's turn; return a function that releases the turn, to be called once in the event loop."""
        client = self._clients.setdefault(name, _Client(self._at_once))
        client.num_asked += 1
        try:
            await client.turns.acquire()
        except BaseException:
            self._leave(name, client)
            raise

        def give_back() -> None:
            client.turns.release()
            self._leave(name, client)

        return give_back

    @asynccontextmanager
    async def taken(self, name: str) -> AsyncIterator[None]:
        """Hold a turn of a client while the block lasts."""
        give_back = await self.take(name)
        try:
            yield
        finally:
            give_back()

    def _leave(self, name: str, client: _Client) -> None:
        client.num_asked -= 1
        if not client.num_asked:
            self._clients.pop(name, None)
