"""Watch of a running program: reports when the program stands still and when it makes progress again.

Where: `hang_alarm` creates one watch per program and closes it at the program's end; a thread of its own reads /proc
and calls the supervisor back. `progress_policy` decides what counts as progress.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from clary.agent.autopsy.progress_policy import Reading, Standstill, horizon_s, judge, quiet_s
from clary.agent.autopsy.progress_reading import evidence, read_counters
from clary.agent.worker import Worker

INTERVAL_S = 5.0
_FEWEST_READINGS = 20  # readings per limit: a shorter limit means more frequent readings


class ProgressWatch(Worker):
    """Watches a process and its descendants; no callback begins after `close` has returned True.

    Args:
        first_pid: pid of the first process of the host's program on this machine.
        num_outputs: returns how often the program has printed so far; called from the watch's thread.
        limit_s: how long the program may be idle.
        on_standstill: called with a description, from the watch's thread, when the program makes no progress; once per
            standstill.
        on_progress: called when it makes progress again.
        on_quiet: called with a description when, for `limit_s`, the program has used the processor but has not printed,
            read, written or sent anything; called again only after it has shown other activity. None: no callback.
    """

    def __init__(
        self,
        first_pid: int,
        *,
        num_outputs: Callable[[], int],
        limit_s: float,
        on_standstill: Callable[[str], None],
        on_progress: Callable[[], None],
        on_quiet: Callable[[str], None] | None = None,
    ) -> None:
        self._first_pid = first_pid
        self._num_outputs = num_outputs
        self._limit_s = limit_s
        self._on_standstill = on_standstill
        self._on_progress = on_progress
        self._on_quiet = on_quiet
        self._interval_s = min(INTERVAL_S, limit_s / _FEWEST_READINGS)
        super().__init__(
            "progress-watch",
            failure="the program's progress could not be read; nothing more is said of it",
            first_pause_s=self._interval_s,
        )
        self._readings: deque[Reading] = deque()
        self._is_told = self._is_quiet = False

    def _round(self) -> float | None:
        found = self._look()
        words = in_words(found, evidence(self._first_pid)) if found is not None and not self._is_told else ""
        if self.is_aborted:
            return None
        if words:
            self._on_standstill(words)
        elif self._is_told and found is None:
            self._on_progress()
        was_quiet, self._is_quiet = self._is_quiet, quiet_s(self._readings) >= self._limit_s
        if self._on_quiet is not None and self._is_quiet and not was_quiet and found is None:
            self._on_quiet(_quiet_words(self._limit_s))
        self._is_told = found is not None
        return self._interval_s

    def _look(self) -> Standstill | None:
        now_s = time.monotonic()
        if self._readings and now_s - self._readings[-1].at_s > 2 * self._interval_s + self._limit_s:
            self._readings.clear()  # the last reading is too old, for example after a suspend: discard all readings
        counters = read_counters(self._first_pid)
        self._readings.append(
            Reading(
                at_s=now_s,
                num_outputs=self._num_outputs(),
                cpu_s=counters.cpu_s,
                io_bytes=counters.io_bytes,
                network_bytes=counters.network_bytes,
            )
        )
        while len(self._readings) > 1 and now_s - self._readings[1].at_s >= horizon_s(self._limit_s):
            self._readings.popleft()
        return judge(tuple(self._readings), limit_s=self._limit_s)


def _quiet_words(limit_s: float) -> str:
    return f"for {limit_s:g} s it has computed or waited in a loop, and printed, read, written and sent nothing"


def in_words(found: Standstill, seen: str) -> str:
    """Return the standstill in words, for the log and for `clary describe`."""
    what = "waits for something that does not come" if found.kind == "idle" else "computes or waits in a loop"
    return (
        f"no progress for {found.seconds:.0f} s: nothing was printed, read, written or sent, and {found.cpu_s:.1f} s "
        f"of processor time were used, so it {what}; its processes: {seen or 'none'}"
    )
