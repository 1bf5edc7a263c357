"""Rules on the steps of a training: outliers, the time to the first step, the wait for data.

Where: durations of steps are series of ranks (`rank-N/step_s`, `rank-N/step_max_s`, `rank-N/data_wait_s`), their number
is `rank-N/steps`; a program whose steps are not measured is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from clary.control.profiling.measurements import MS_PER_S, Measurements, Scope
from clary.control.profiling.quantiles import deviation_of, mean_of, num_rows, quantiles
from clary.control.profiling.rule import POSITIVE, ProfilerRule, Verdict, not_judged
from clary.control.series.queries import Point

NO_STEPS = "no steps were measured"
CLEARLY_LONGER = 2.0  # times the median; of a thousand even steps, one exceeds three deviations by chance
WAITS_FOR_DATA = 0.1  # share of a step: shorter waits do not justify more workers
BUSY_PERCENT = 90.0  # of a host's processors: too many workers are harmful only on busy processors
_S_PER_MINUTE = 60


@dataclass(frozen=True, kw_only=True)
class StepOutlier(ProfilerRule):
    """Single steps take far longer than the others.

    Formula: more than n_outliers rows of a rank have a longest step > mean + stddev * standard deviation and > 2 *
    median; the standard deviation of steps is that of the rows' means * sqrt(steps per row).

    Args:
        stddev: factor of the standard deviation.
        mode: accepted without effect: only optimiser steps are measured.
        n_outliers: number of outliers that is tolerated.
        scan_interval_us: microseconds between evaluations.
    """

    advice: ClassVar[str] = (
        "Compare the moments of the long steps with the charts: checkpoints, evaluations, garbage collection, a disk "
        "or a neighbour that is busy. A profile of such a step shows where it waits: clary profile JOB."
    )

    stddev: float = field(default=3, metadata=POSITIVE)
    mode: str | None = None
    n_outliers: int = field(default=10, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""
        ranks = measurements.scopes("rank", "step_s")
        evidence, figures, rows, all_outliers = [], {}, 0, 0
        for rank in ranks:
            points = measurements.of(rank, "step_s")
            if not points:
                continue
            # Means of several steps vary less than single steps.
            spread_s = deviation_of(points) * math.sqrt(_steps_per_point(measurements, rank, points))
            limit_s = mean_of(points) + self.stddev * spread_s
            median_s = quantiles(points, (0.5,))[0]
            longest = measurements.of(rank, "step_max_s") or points  # a row may be the mean of several steps
            outliers = _num_beyond(longest, max(limit_s, CLEARLY_LONGER * median_s))
            longest_s = max(point.greatest for point in longest)
            rows, all_outliers = rows + num_rows(points), all_outliers + outliers
            figures[rank.label] = {"outliers": outliers, "median_s": median_s, "longest_s": longest_s}
            evidence.append(
                (outliers, f"{rank.label}: {outliers} outliers, median {median_s:.3g} s, longest {longest_s:.3g} s")
            )
        if not evidence:
            return not_judged(NO_STEPS)
        worst, line = max(evidence)
        return Verdict(
            has_issue=worst > self.n_outliers,
            detail=f"{line}; {self.n_outliers} are let pass",
            evidence=tuple(text for _, text in evidence),
            num_datapoints=rows,
            num_violations=all_outliers,
            figures=figures,
        )


@dataclass(frozen=True, kw_only=True)
class MaxInitializationTime(ProfilerRule):
    """The first step comes late.

    Formula: minutes from the start of the program to the end of its first step > threshold, in some attempt of the job;
    without a step, the minutes to the end of the attempt, or to now.

    Args:
        threshold: minutes.
        scan_interval_us: microseconds between evaluations.
    """

    advice: ClassVar[str] = (
        "Look at what happens before the first step: imports, downloads within the script, building an index of the "
        "data, compilation; clary dump JOB shows it while it lasts."
    )

    threshold: float = field(default=20, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""
        numbers = [measurements.of(rank, "steps") for rank in measurements.scopes("rank", "steps")]
        durations = [measurements.of(rank, "step_s") for rank in measurements.scopes("rank", "step_s")]
        num_datapoints = sum(map(len, numbers)) + sum(map(len, durations))
        if not measurements.runs_ms or not num_datapoints:
            return not_judged(NO_STEPS)
        stepped = [point.at_ms for points in durations for point in points]
        stepped += [point.at_ms for points in numbers for point in points if point.greatest > 0]
        first_of: dict[int, int] = {}  # by attempt
        for at_ms in sorted(stepped, reverse=True):
            first_of[measurements.attempt_of(at_ms)] = at_ms
        waits = []
        for attempt, (began_ms, last_ms) in measurements.runs_ms.items():
            is_past = attempt < len(measurements.breaks_ms)
            end_ms = first_of.get(attempt, last_ms if is_past else measurements.until_ms)
            minutes = max(0.0, (end_ms - began_ms) / MS_PER_S / _S_PER_MINUTE)
            came = "the first step came after" if attempt in first_of else "there was no step for"
            whose = f"attempt {attempt + 1}: " if measurements.breaks_ms else ""
            waits.append((minutes, f"{whose}{came} {minutes:.1f} minutes"))
        minutes, line = max(waits, key=lambda wait: wait[0])
        return Verdict(
            has_issue=minutes > self.threshold,
            detail=f"{line}; the limit is {self.threshold:g}",
            evidence=tuple(words for _, words in waits) if len(waits) > 1 else (),
            num_datapoints=num_datapoints,
            num_violations=sum(wait > self.threshold for wait, _ in waits),
            figures={"job": {"initialisation_minutes": round(minutes, 2)}},
        )


@dataclass(frozen=True, kw_only=True)
class Dataloader(ProfilerRule):
    """The number of data loading processes does not fit the processors.

    Formula: workers = processes of all ranks of a host, not counting the ranks themselves. Too few: 100 * workers /
    processors < min_threshold while ranks wait for data for more than a tenth of a step. Too many: 100 * workers /
    processors > max_threshold while the processors are 90 % busy.

    Args:
        min_threshold: percent of the host's processors.
        max_threshold: percent of the host's processors.
        scan_interval_us: microseconds between evaluations.
    """

    advice: ClassVar[str] = (
        "Set num_workers of the DataLoader so that all ranks of a host together have about as many workers as the host "
        "has processors; keep them alive (persistent_workers) and let them read ahead (prefetch_factor)."
    )

    min_threshold: float = field(default=70, metadata=POSITIVE)
    max_threshold: float = field(default=200, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""
        evidence, figures, rows = [], {}, 0
        sees_waits = False
        for host in measurements.hosts:
            ranks = [rank for rank in measurements.scopes("rank", "num_processes") if rank.host == host.name]
            counts = [points for rank in ranks if (points := measurements.of(rank, "num_processes"))]
            if not counts:
                continue
            workers = sum(max(0.0, quantiles(points, (0.5,))[0] - 1) for points in counts)
            busy = measurements.cpu_share(host.name)
            busy_percent = mean_of(busy) if busy else 0.0
            wait = _wait_share(measurements, host.name)
            sees_waits = sees_waits or wait is not None
            percent = 100 * workers / max(host.num_cpus, 0.01)
            has_few = percent < self.min_threshold and wait is not None and wait > WAITS_FOR_DATA
            has_many = percent > self.max_threshold and busy_percent >= BUSY_PERCENT
            rows += sum(num_rows(points) for points in counts)
            figures[host.name] = {"workers": workers, "processors": host.num_cpus, "busy_percent": busy_percent}
            waits = "waits for data are not measured"
            if wait is not None:
                figures[host.name]["data_wait_percent"] = round(100 * wait, 1)
                waits = f"ranks wait for data {100 * wait:.0f} % of a step"
            evidence.append(
                (
                    has_few or has_many,
                    f"{host.name}: {workers:g} workers for {host.num_cpus:g} processors ({percent:.0f} %, fit are "
                    f"{self.min_threshold:g} to {self.max_threshold:g} %); {waits}; "
                    f"processors {busy_percent:.0f} % busy",
                )
            )
        if not evidence:
            return not_judged("no ranks were measured")
        worst, line = max(evidence)
        return Verdict(
            has_issue=worst,
            detail=line,
            evidence=tuple(text for _, text in evidence),
            num_datapoints=rows,
            num_violations=sum(is_bad for is_bad, _ in evidence),
            figures=figures,
            was_judged=sees_waits or worst,
        )


def _wait_share(measurements: Measurements, host: str) -> float | None:
    """Return the greatest share of a step that any rank of a host spends waiting for data; None if not measured."""
    shares = []
    for rank in measurements.scopes("rank", "data_wait_s"):
        waits, steps = measurements.of(rank, "data_wait_s"), measurements.of(rank, "step_s")
        if rank.host == host and waits and steps and (step_s := mean_of(steps)) > 0:
            shares.append(min(1.0, mean_of(waits) / step_s))
    return max(shares, default=None)


def _steps_per_point(measurements: Measurements, rank: Scope, points: Sequence[Point]) -> float:
    """Return the number of steps in a point's mean; at least one."""
    numbers = measurements.of(rank, "steps")
    if len(numbers) < 2:
        return max(1.0, num_rows(points) / len(points))
    # Step numbers start from 0 in each attempt.
    num_steps = sum(own[-1].greatest - own[0].least for own in measurements.by_attempt(numbers))
    return max(1.0, num_steps / len(points))


def _num_beyond(points: Sequence[Point], limit: float) -> int:
    """Return the number of rows beyond a limit: all rows of a point if its mean is, 1 if only its maximum is."""
    return sum(
        round(point.count) if point.mean > limit else 1 for point in points if max(point.mean, point.greatest) > limit
    )
