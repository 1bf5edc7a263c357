"""Time, injected: `now` for records, `monotonic` for intervals."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """A source of time; tests pass a fake one."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""
        return time.monotonic()
