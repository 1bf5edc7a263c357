"""Retention of log lines: the policy of the log group, a file beside its streams, overrides the settings.

Where: `LogStore` hides expired lines, and `remove_expired` deletes streams whose lines have all expired. An expired
line in a stream that still grows is hidden at once; its space is freed with the stream.
Source: PutRetentionPolicy, DeleteRetentionPolicy (API reference).
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

from clary.base.errors import Fault, StoreError

_FILE = "retention.json"
_DAYS = "retention_in_days"


class LogRetention:
    """The number of days for which lines are kept; calls that change it must not overlap.

    Args:
        folder: folder of the log streams.
        default_days: used without a policy; 0 keeps lines for ever.
    """

    def __init__(self, folder: Path, *, default_days: int) -> None:
        self._path = folder / _FILE
        self._default_days = default_days
        self._policy_days: int | None = None
        self._has_read = False

    def days(self) -> int:
        """Return the days for which lines are kept; 0 is for ever.

        Raises: StoreError for a policy that cannot be read: a guess could delete lines that have to be kept.
        """
        if not self._has_read:
            self._policy_days = self._read()
            self._has_read = True
        return self._default_days if self._policy_days is None else self._policy_days

    def put(self, days: int | None) -> None:
        """Set the policy; None removes it. Raises: StoreError if the disk refuses; then the policy is unchanged."""
        try:
            if days is None:
                self._path.unlink(missing_ok=True)
            else:
                temporary = self._path.with_suffix(".tmp")
                with temporary.open("w", encoding="ascii") as file:
                    file.write(json.dumps({_DAYS: days}))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self._path)
        except OSError as error:
            raise StoreError(
                f"cannot store the retention policy in {self._path}: {error.strerror}; look for a full disk or "
                f"permissions",
                fault=Fault.INFRASTRUCTURE,
                retryable=True,
            ) from error
        self._policy_days, self._has_read = days, True

    def begin_ms(self, now: datetime) -> int | None:
        """Return the time before which lines have expired, or None if lines never expire."""
        days = self.days()
        return int((now - timedelta(days=days)).timestamp() * 1000) if days else None

    def _read(self) -> int | None:
        try:
            days = json.loads(self._path.read_text(encoding="ascii"))[_DAYS]
            if not isinstance(days, int) or days < 1:
                raise ValueError(f"{days!r} days")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"cannot read the retention policy in {self._path} ({error}): remove the file and put the policy again",
                fault=Fault.INFRASTRUCTURE,
            ) from error
        return days
