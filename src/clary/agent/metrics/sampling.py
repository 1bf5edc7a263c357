"""The thread that reads every source at each beat and appends a row.

Where: `metrics.host_metrics` starts it with the host's preparation and ends it with the host. A source that raises an
error is no longer read; no error here affects the host.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from clary.agent.metrics.row_store import RowStore
from clary.agent.metrics.sources import Source, Values
from clary.agent.worker import Worker
from clary.base.clock import Clock

MAX_LOAD = 0.04  # share of one processor; measurements that cost more become less frequent
_JUMP_MS = 1000  # if the time of day is ahead by more than this, it is adopted

logger = logging.getLogger(__name__)


class Sampling(Worker):
    """Measures until `abort`.

    Args:
        sources: read in this order, only by the thread.
        store: receives the rows.
        clock: gives rows their times.
        interval_s: time between two rows.
        marks: returns further values of a row that cost nothing, such as the phase.
    """

    def __init__(
        self,
        sources: list[Source],
        *,
        store: RowStore,
        clock: Clock,
        interval_s: float,
        marks: Callable[[], Values] = dict,
    ) -> None:
        super().__init__("metrics-sampling", failure="nothing is measured any more")
        self._sources = sources
        self._store = store
        self._clock = clock
        self._interval_s = interval_s
        self._marks = marks
        self._changes: list[Callable[[], None]] = []
        self._lock = threading.Lock()  # guards `_changes`
        self._next_s = math.inf  # time at which the next row is due
        self._began_s = clock.monotonic()
        self._began_ms = _milliseconds(clock)

    def add(self, make: Callable[[], Source]) -> None:
        """Create a source and read it from the next row on; return at once."""

        def change() -> None:
            self._sources.append(make())

        self._change(change)

    def remove(self, kind: type) -> None:
        """Stop reading sources of a kind and close them; return at once."""

        def change() -> None:
            for source in [source for source in self._sources if isinstance(source, kind)]:
                self._sources.remove(source)
                source.close()

        self._change(change)

    def measure_every(self, interval_s: float) -> None:
        """Change the interval between rows, except for GPUs; return at once."""
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self.flush()

    def _change(self, change: Callable[[], None]) -> None:
        with self._lock:
            self._changes.append(change)

    def _round(self) -> float | None:
        beat_s = min(self._next_s, time.monotonic())
        used_s = time.thread_time()
        self._carry_out_changes()
        self._store.add(self._time_ms(), self._row())
        used_s = time.thread_time() - used_s
        self._next_s = next_beat_s(beat_s, now_s=time.monotonic(), interval_s=max(self._interval_s, used_s / MAX_LOAD))
        return max(0.0, self._next_s - time.monotonic())

    def _on_end(self) -> None:
        self._carry_out_changes()
        for source in self._sources:
            source.close()

    def _carry_out_changes(self) -> None:
        with self._lock:
            changes, self._changes = self._changes, []
        for change in changes:
            try:
                change()
            except Exception:  # error boundary, as in `_row`
                logger.exception("a source of metrics could not be made")

    def _row(self) -> Values:
        values: Values = dict(self._marks())
        for source in tuple(self._sources):
            try:
                values |= source.read(time.monotonic())
            except Exception:  # error boundary: an error of one source does not affect other sources
                logger.exception("%s is not read any more", type(source).__name__)
                self._sources.remove(source)
                source.close()
        return values

    def _time_ms(self) -> int:
        """Return a time of day that never decreases: rows keep their order when the clock is set back."""
        even_ms = self._began_ms + int((self._clock.monotonic() - self._began_s) * 1000)
        now_ms = _milliseconds(self._clock)
        if now_ms - even_ms > _JUMP_MS:  # the clock was set forward, or the machine was suspended
            self._began_ms += now_ms - even_ms
            return now_ms
        return even_ms


def next_beat_s(beat_s: float, *, now_s: float, interval_s: float) -> float:
    """Return the time at which the next row is due; missed beats are skipped. Pure.

    Args:
        beat_s: monotonic time at which the last row was due.
        now_s: monotonic time.
        interval_s: time between two beats.
    """
    due_s = beat_s + interval_s
    if due_s > now_s:
        return due_s
    return now_s + interval_s - (now_s - beat_s) % interval_s


def _milliseconds(clock: Clock) -> int:
    return int(clock.now().timestamp() * 1000)
