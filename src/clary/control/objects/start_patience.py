"""Limit of the wait for a process to start: longer while it shows signs of life, because a loaded machine is slow.

Where: `seaweed.EmbeddedStore` uses this limit while it probes the store. `clary up` uses it while it waits for the
service that starts the store. The decision is pure; `signs_of` reads its input. Linux only.
Source: proc(5) for /proc/PID/stat; kernel Documentation/scheduler/sched-stats.rst for schedstat.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

LONGEST_START_S = 600.0  # a process in an endless loop shows signs of life for ever
# The timers of a hung store still use 1/400 of a core; a starting store uses all processor time that it gets.
LEAST_BUSY_SHARE = 0.03
_NANOSECONDS = 1e9


@dataclass(frozen=True, kw_only=True)
class Signs:
    """Signs of life of a process since its start."""

    busy_s: float  # time that all its threads spent running on a processor or waiting for one
    log_bytes: int


class StartPatience:
    """Decides whether to wait longer for a start, by signs of life.

    Args:
        now_s: monotonic time of the start.
        silence_s: seconds without a sign of life after which a start is abandoned.
        longest_s: seconds after which a start is abandoned in any case.
    """

    def __init__(self, now_s: float, *, silence_s: float, longest_s: float = LONGEST_START_S) -> None:
        self._started_s = self._sign_s = now_s
        self.silence_s = silence_s
        self._longest_s = longest_s
        self._at_sign = Signs(busy_s=0.0, log_bytes=0)

    def why_over(self, now_s: float, signs: Signs) -> str | None:
        """Return why the start is abandoned, or None while the wait continues.

        Args:
            now_s: monotonic time.
            signs: signs of life of the process so far.
        """
        busy_s = signs.busy_s - self._at_sign.busy_s
        needed_s = max(LEAST_BUSY_SHARE * (now_s - self._sign_s), LEAST_BUSY_SHARE)
        if signs.log_bytes != self._at_sign.log_bytes or busy_s >= needed_s:
            self._sign_s, self._at_sign = now_s, signs
        if now_s - self._sign_s >= self.silence_s:
            return f"it has neither computed nor logged for {self.silence_s:g} s"
        if now_s - self._started_s >= self._longest_s:
            return f"it is busy, but {self._longest_s:g} s have passed"
        return None


def signs_of(pid: int, log: Path) -> Signs:
    """Read the signs of life of a process; an ended process has a busy time of zero."""
    busy_ns = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii").split()
                busy_ns += int(fields[0]) + int(fields[1])
    try:
        log_bytes = log.stat().st_size
    except OSError:
        log_bytes = 0
    return Signs(busy_s=busy_ns / _NANOSECONDS, log_bytes=log_bytes)
