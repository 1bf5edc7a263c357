"""One deadline for all steps that form a group."""

from __future__ import annotations

import time


class Deadline:
    """Counts down from `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._start_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start_s

    @property
    def remaining_s(self) -> float:
        """Seconds left, never less than 0."""
        return max(0.0, self.limit_s - self.elapsed_s)

    @property
    def has_passed(self) -> bool:
        """Whether no time is left."""
        return self.remaining_s <= 0
