"""Time for signing requests: this machine's clock, corrected by the store's time when the store refuses it.

Where: `exchange` signs by it. A store refuses signatures whose time is a quarter of an hour off its own: a host whose
clock is off, or is set while a job runs, could store nothing. AWS's own clients learn the time in the same way.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from clary.base.clock import Clock

# Of an HTTP date, which has whole seconds, to a signature that had a long way: less is no reason to be refused.
_LEAST = timedelta(minutes=1)
# An answer to HEAD has no body, and so no code.
_CODES = frozenset({"RequestTimeTooSkewed", "AccessDenied", ""})


class StoreTime:
    """Current time of one store; safe for many threads at once.

    Args:
        clock: of this machine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = timedelta(0)  # of this machine's clock

    def now(self) -> datetime:
        """Return the time for a signature."""
        return self._clock.now() - self._ahead

    def learn(self, status: int, code: str, date: str | None) -> bool:
        """Take note of a refusal; return whether the same request signed by another time may pass.

        Args:
            status: of the answer.
            code: of the error; empty where the answer has none.
            date: the answer's header of that name.
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
