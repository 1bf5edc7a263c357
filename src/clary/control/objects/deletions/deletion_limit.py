"""Limit on concurrent DeleteObjects requests: their bodies are held in memory; other large bodies of S3 are streamed.

Where: `front` enters the limit before it reads such a body.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from clary.base.errors import WireError
from clary.control.turns import Turns

MOST_OF_A_KEY = 8  # a body has up to 2 MiB
MOST_IN_ALL = 64


class DeletionLimit:
    """Counts requests by access key, and lets one body at a time be parsed."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._turn = asyncio.Semaphore(1)
        self._turns_of_one = Turns(1)

    @asynccontextmanager
    async def turn(self, access_key_id: str) -> AsyncIterator[None]:
        """Hold the turn of the only body that is parsed at a time; the bodies of one key delay others by one only."""
        async with self._turns_of_one.taken(access_key_id), self._turn:
            yield

    @contextmanager
    def entered(self, access_key_id: str) -> Iterator[None]:
        """Count a request while it lasts.

        Raises: WireError SlowDown, after which clients retry.
        """
        if self._counts[access_key_id] >= MOST_OF_A_KEY or self._counts.total() >= MOST_IN_ALL:
            raise WireError(
                "SlowDown",
                f"Please reduce your request rate: at most {MOST_OF_A_KEY} DeleteObjects requests of one "
                f"access key, and {MOST_IN_ALL} in all, are carried out at once.",
                http_status=503,
            )
        self._counts[access_key_id] += 1
        try:
            yield
        finally:
            self._counts[access_key_id] -= 1
            if not self._counts[access_key_id]:
                del self._counts[access_key_id]
