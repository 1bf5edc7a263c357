"""Time for signing requests: this machine's clock, corrected by the store's time after a refused signature.

Where: `exchange` signs with this time. A store refuses signatures whose time differs from its own by over 15 minutes:
without this correction, a host whose clock is wrong, or is set while a job runs, could not store objects. AWS's own
clients learn the time in the same way.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from clary.base.clock import Clock

# Smaller differences arise from whole seconds in HTTP dates and from slow requests, and cause no refusal.
_LEAST = timedelta(minutes=1)
# An answer to HEAD has no body, and so no error code.
_CODES = frozenset({"RequestTimeTooSkewed", "AccessDenied", ""})


class StoreTime:
    """Current time of one store; safe for many threads at once.

    Args:
        clock: clock of this machine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = timedelta(0)  # time by which this machine's clock is ahead of the store's

    def now(self) -> datetime:
        """Return the time for a signature."""
        return self._clock.now() - self._ahead

    def learn(self, status: int, code: str, date: str | None) -> bool:
        """Learn the time from a refusal; return whether the same request may pass with a new signature.

        Args:
            status: status of the answer.
            code: error code; empty if the answer has none.
            date: header `Date` of the answer.
        """
        if status != HTTPStatus.FORBIDDEN or code not in _CODES or date is None:
            return False
        try:
            theirs = parsedate_to_datetime(date)
        except ValueError:
            return False
        if theirs.tzinfo is None:
            theirs = theirs.replace(tzinfo=timezone.utc)
        if abs(self.now() - theirs) < _LEAST:
            return False
        self._ahead = self._clock.now() - theirs
        return True
