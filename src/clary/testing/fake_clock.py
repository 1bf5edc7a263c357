"""A clock that only a test advances."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Time of day and monotonic time, advanced by a test.

    Args:
        start: time of day at the beginning; monotonic time begins at 1000 s.
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = start
        self._monotonic_s = 1000.0

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += seconds

    def set_time_of_day(self, now: datetime) -> None:
        """Set the wall clock, as NTP does; no time passes."""
        self._now = now
