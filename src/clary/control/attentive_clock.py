"""A clock that stands still while this service is blocked: by its disk, by other programs, by a paused machine.

Where: the silence of hosts, of pools' agents and of boxes is measured with it. A blocked service receives no requests,
and may afterwards judge a silence before it has read the requests that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from clary.base.clock import Clock

LISTEN_INTERVAL_S = 0.25  # interval of checks whether this service could receive requests
# A service blocked for longer received no requests meanwhile; on an overloaded machine many such delays add up.
MAX_LAG_S = 0.1


class AttentiveClock:
    """The time in which this service could receive requests; without `keep_listening`, the time of the other clock.

    Args:
        clock: gives the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._blocked_s = 0.0
        self._listened_s: float | None = None  # time of the last check by `keep_listening`; None without checks
        self._users: list[Callable[[], bool]] = []
        self._beginners: list[Callable[[], None]] = []
        self._is_used = asyncio.Event()

    def now(self) -> datetime:
        """Return the current time as an aware datetime in UTC, whether or not this service was blocked."""
        return self._clock.now()

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, less the time in which this service was blocked."""
        now_s = self._clock.monotonic()
        if self._listened_s is not None:
            lag_s = now_s - self._listened_s - LISTEN_INTERVAL_S
            if lag_s >= MAX_LAG_S:
                self._listened_s = now_s
                self._blocked_s += lag_s
        return now_s - self._blocked_s

    def add_user(self, *, counts: Callable[[], bool], begin: Callable[[], None]) -> None:
        """Add a user, which measures silences with this clock.

        Args:
            counts: returns whether the user counts any silence now; an idle service need not check.
            begin: counts every silence of the user from now; called when the service, which was starting until then,
                begins to listen.
        """
        self._users.append(counts)
        self._beginners.append(begin)

    def wake(self) -> None:
        """Check from now on; a user calls it when it begins to count a silence."""
        self._is_used.set()

    async def keep_listening(self) -> None:
        """Detect, until cancelled, when this service is blocked; all silences count from this call at the earliest."""
        for begin in self._beginners:
            begin()
        try:
            while True:
                if any(counts() for counts in self._users):
                    self.monotonic()
                    self._listened_s = self._clock.monotonic()
                    await asyncio.sleep(LISTEN_INTERVAL_S)
                else:  # no silence is counted, so no check is needed
                    self._listened_s = None
                    self._is_used.clear()
                    await self._is_used.wait()
        finally:
            self._listened_s = None
