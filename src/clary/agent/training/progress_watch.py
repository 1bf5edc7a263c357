"""Estimates a program's progress from many signs: finds the training's counter and the remaining time.

Where: `log.log_intake` feeds lines from any thread; `training_watch` polls in its own thread and sends new progress to
the service. One watch serves one attempt, so that a rate never spans a restart.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections import deque
from dataclasses import dataclass, field, replace

from clary.agent.training.progress_words import MOST, Sign, may_hold_progress, sign_in
from clary.base.clock import Clock
from clary.contract.training_values import TrainingProgress

MAX_LINES = 6  # of lines that arrive together, only the last lines are read
MAX_TRACKS = 32  # counters that are tracked
MAX_LOOKS_PER_S = 50  # lines read; of a program that prints more, the first lines of each second are read
STALE_S = 600.0  # a counter that stood still for longer is replaced by a moving counter
RATE_POINTS = 24
RATE_SPAN_S = 600.0  # older points do not count for the rate
LEAST_POINT_GAP_S = 1.0
LEAST_POINTS = 3
_TIMED_FACTOR = 4.0  # a counter that lasts this many times as long as the most recent one is the training's counter

logger = logging.getLogger(__name__)


class RateEstimate:
    """The rate at which a counter grows: the median of the slopes between its recent points."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=RATE_POINTS)

    def add(self, at_s: float, done: float) -> None:
        """Add a point; a point below the last one restarts the estimate."""
        if self._points and done < self._points[-1][1]:
            self._points.clear()
        while self._points and at_s - self._points[0][0] > RATE_SPAN_S:
            self._points.popleft()
        if not self._points or (at_s - self._points[-1][0] >= LEAST_POINT_GAP_S and done > self._points[-1][1]):
            self._points.append((at_s, done))

    def eta_s(self, left: float) -> float | None:
        """Return how long `left` will take; None until a rate is known."""
        if len(self._points) < LEAST_POINTS:
            return None
        points = list(self._points)
        slopes = [
            (later - earlier) / (later_s - earlier_s)
            for index, (earlier_s, earlier) in enumerate(points)
            for later_s, later in points[index + 1 :]
        ]
        rate = statistics.median(slopes)
        eta_s = left / rate if rate > 0 else math.inf
        return eta_s if eta_s < MOST else None


@dataclass
class _Track:
    """One counter in a program's output."""

    sign: Sign
    began_s: float
    moved_s: float
    first_epoch: int | None = None  # epoch in which the counter began
    rate: RateEstimate = field(default_factory=RateEstimate)

    def lasts_s(self, now_s: float) -> float:
        """Return the estimated seconds from the counter's begin to its end."""
        elapsed_s = self.sign.seconds if self.sign.seconds is not None else now_s - self.began_s
        share = self.sign.done / self.sign.total if self.sign.total else 0.0
        return elapsed_s / share if share > 0 else elapsed_s


class ProgressWatch:
    """Follows the counters of one program; safe for many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tracks: dict[tuple[int | None, str, str, float | None], _Track] = {}
        self._epoch: tuple[int, int] | None = None  # the running epoch and the number of epochs
        self._state: TrainingProgress | None = None
        self._state_rate = RateEstimate()
        self._whole_rate = RateEstimate()
        self._has_failed = False
        self._second = 0
        self._num_looks = 0

    def feed(self, lines: list[str], *, rank: int | None) -> None:
        """Read log lines that one process printed; lines without progress cost very little time."""
        if rank not in (None, 0):
            return  # ranks count the same steps: the first rank's lines are enough
        try:
            for line in lines[-MAX_LINES:]:
                if may_hold_progress(line) and self._may_look() and (sign := sign_in(line)) is not None:
                    self._take(sign, rank)
        except Exception:  # boundary: the program's output passes through here, and the program would wait
            if not self._has_failed:
                logger.exception("lines are not read for progress")
            self._has_failed = True

    def take_state(self, progress: TrainingProgress) -> None:
        """Read the progress of a state file."""
        with self._lock:
            self._state_rate.add(self._clock.monotonic(), progress.done)
            self._state = progress

    def current(self) -> TrainingProgress | None:
        """Return the progress of the program; None while it is unknown."""
        now_s = self._clock.monotonic()
        with self._lock:
            track = self._chosen(now_s)
            if track is None:
                return self._of_state()
            if self._state is not None and self._state.total == track.sign.total:
                pass  # the log shows the same counter, and more often
            elif self._state is not None:
                return self._of_state()
            return self._of_track(track)

    def _may_look(self) -> bool:
        second = int(self._clock.monotonic())
        with self._lock:
            if second != self._second:
                self._second, self._num_looks = second, 0
            self._num_looks += 1
            return self._num_looks <= MAX_LOOKS_PER_S

    def _take(self, sign: Sign, rank: int | None) -> None:
        now_s = self._clock.monotonic()
        with self._lock:
            if sign.epoch is not None and sign.max_epoch:
                self._epoch = (sign.epoch, sign.max_epoch)
            elif sign.epoch is not None and self._epoch is not None:
                self._epoch = (sign.epoch, self._epoch[1])
            key = (rank, sign.kind, sign.name, sign.total)
            track = self._tracks.get(key)
            if track is None or sign.done < track.sign.done:
                if track is None and len(self._tracks) >= MAX_TRACKS:
                    oldest = min(self._tracks, key=lambda known: self._tracks[known].moved_s)
                    del self._tracks[oldest]
                track = self._tracks[key] = _Track(
                    sign=sign, began_s=now_s, moved_s=now_s, first_epoch=self._epoch[0] if self._epoch else None
                )
            elif sign.done > track.sign.done:
                track.moved_s = now_s
            track.sign = sign
            track.rate.add(now_s, sign.done)

    def _chosen(self, now_s: float) -> _Track | None:
        """Return the counter of the training; steps are preferred to epochs.

        It is the counter that moved last, unless another moving counter lasts `_TIMED_FACTOR` times as long.
        """
        live = [track for track in self._tracks.values() if now_s - track.moved_s <= STALE_S]
        if not live:
            live = list(self._tracks.values())
        steps = [track for track in live if track.sign.kind != "epoch"]
        epochs = [track for track in live if track.sign.kind == "epoch"]
        if not steps:
            return max(epochs, key=lambda track: track.moved_s, default=None)
        chosen = max(steps, key=lambda track: track.lasts_s(now_s))
        recent = max(steps, key=lambda track: track.moved_s)
        return recent if recent.lasts_s(now_s) * _TIMED_FACTOR > chosen.lasts_s(now_s) else chosen

    def _of_track(self, track: _Track) -> TrainingProgress:
        sign, at_ms = track.sign, int(self._clock.now().timestamp() * 1000)
        total = sign.total or 0.0
        if sign.kind == "epoch":
            left = total - sign.done
            max_epoch = int(total)
            return TrainingProgress(
                done=sign.done,
                total=total,
                unit="epochs",
                at_ms=at_ms,
                eta_s=track.rate.eta_s(left),
                epoch=max(1, min(max_epoch, int(sign.done))),
                max_epoch=max_epoch,
            )
        epoch = self._epoch_of(track)
        if epoch is None or epoch[1] * total >= MOST:
            return TrainingProgress(done=sign.done, total=total, at_ms=at_ms, eta_s=track.rate.eta_s(total - sign.done))
        number, max_epoch = epoch
        done, whole = (number - 1) * total + sign.done, max_epoch * total
        self._whole_rate.add(self._clock.monotonic(), done)
        return TrainingProgress(
            done=done,
            total=whole,
            at_ms=at_ms,
            eta_s=self._whole_rate.eta_s(whole - done),
            epoch=number,
            max_epoch=max_epoch,
            step_in_epoch=int(sign.done),
            steps_per_epoch=int(total),
        )

    def _epoch_of(self, track: _Track) -> tuple[int, int] | None:
        """Return the epoch whose steps a counter counts; None if it counts the steps of the whole training."""
        sign = track.sign
        is_of_one_epoch = sign.done == sign.total or self._epoch is None or track.first_epoch in (None, self._epoch[0])
        if sign.is_global or not is_of_one_epoch:
            return None  # the counter continued over the end of an epoch
        if sign.epoch is not None and sign.max_epoch:
            epoch: tuple[int, int] | None = (sign.epoch, sign.max_epoch)
        else:
            epoch = self._epoch
        if epoch is None:
            outer = [track.sign for track in self._tracks.values() if track.sign.kind == "epoch" and track.sign.total]
            # A bar of epochs shows how many epochs are finished; the running epoch is the next one.
            epoch = (int(outer[0].done) + 1, int(outer[0].total or 1)) if outer else None
        if epoch is None:
            return None
        number, max_epoch = epoch
        return max(1, min(number, max_epoch)), max_epoch

    def _of_state(self) -> TrainingProgress | None:
        if self._state is None or self._state.total is None:
            return self._state
        return replace(self._state, eta_s=self._state_rate.eta_s(self._state.total - self._state.done))
