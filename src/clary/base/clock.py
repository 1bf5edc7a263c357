"""Time, injected: `now` for records, `monotonic` for intervals, an anchor for intervals that outlive a process.

A wall clock may be set by a minute or a day at any moment. A record from which times are measured, such as a job,
therefore carries an anchor: one moment by both clocks. The record's later times are that moment plus the monotonic time
since then, so that differences between them are true even if the wall clock was set. Monotonic time is the same for all
processes of one boot of the machine; after another boot a new anchor is made.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Protocol

from clary.base.passing_errors import is_passing


class Clock(Protocol):
    """A source of time; tests pass a fake one."""

    def now(self) -> datetime:
        """Return the current time as an aware datetime in UTC."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the current time as an aware datetime in UTC."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""
        return time.monotonic()


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the kernel does not give one.

    Raises: OSError if it cannot be read at the moment. An empty id would differ from all recorded ids, so that every
        running process would count as ended.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError as error:
        if is_passing(error):
            raise
        return ""


@dataclass(frozen=True)
class ClockAnchor:
    """One moment by the wall clock and by monotonic time."""

    boot_id: str
    monotonic_s: float
    wall: datetime

    @classmethod
    def lay(cls, clock: Clock, *, not_before: datetime | None = None) -> ClockAnchor:
        """Return an anchor of the present moment; its wall time is at least `not_before`, the last recorded time."""
        now = clock.now()
        wall = now if not_before is None else max(now, not_before)
        return cls(boot_id=boot_id(), monotonic_s=clock.monotonic(), wall=wall)

    @property
    def holds(self) -> bool:
        """Whether the anchor was made in this boot: monotonic times of two boots cannot be compared."""
        return self.boot_id == boot_id()

    def now(self, clock: Clock) -> datetime:
        """Return the present time measured from the anchor; the wall clock's time if the anchor is of another boot."""
        if not self.holds:
            return clock.now()
        return self.wall + timedelta(seconds=clock.monotonic() - self.monotonic_s)
