"""Rules on GPUs with too little work, and on sudden growth of their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import ClassVar

from clary.control.profiling.measurements import Measurements, Scope
from clary.control.profiling.quantiles import after_patience, mean_of, num_rows, quantiles, windows
from clary.control.profiling.rule import NO_GPU, PERCENTAGE, POSITIVE, ProfilerRule, Verdict, not_judged, too_short
from clary.control.series.queries import Point

# share of a GPU's windows with a fault above which a rule fires; SageMaker's rule fires at one window, even for a
# checkpoint's pause
MOST_OF = 0.5
LEAST_BUSY = 10.0  # percent: GPUs that are all below it are idle, not unbalanced
_BINS = 20
_P5, _P95 = 0.05, 0.95
Judged = Callable[[Scope, Sequence[Point]], str]  # returns a sentence on the fault of a window, or an empty string


@dataclass(frozen=True, kw_only=True)
class LowGPUUtilization(ProfilerRule):
    """A GPU has little to do, or repeatedly has nothing to do.

    Formula: in most windows of a GPU, the 95th percentile is below threshold_p95, or it is not but the 5th percentile
    is below threshold_p5.

    Args:
        threshold_p95: percent of utilisation that the busiest rows of a window should reach.
        threshold_p5: percent of utilisation that nearly all rows of a window should reach.
        window: rows that are judged together.
        patience: rows at the beginning of each attempt that are not judged.
        scan_interval_us: microseconds between evaluations.
    """

    advice: ClassVar[str] = (
        "Look for what the GPU waits for: input, the processor, other ranks. Raise the batch size, use a smaller or "
        "fewer GPUs, or make blocking calls asynchronous."
    )

    threshold_p95: float = field(default=70, metadata=PERCENTAGE)
    threshold_p5: float = field(default=10, metadata=PERCENTAGE)
    window: int = field(default=500, metadata=POSITIVE)
    patience: int = field(default=1000, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""

        def speaks_against(_: Scope, points: Sequence[Point]) -> str:
            p5, p95 = quantiles(points, (_P5, _P95))
            if p95 < self.threshold_p95:
                return f"p95 {p95:.0f} % is below {self.threshold_p95:g} %"
            return f"p5 {p5:.0f} % is below {self.threshold_p5:g} %" if p5 < self.threshold_p5 else ""

        return _judged_windows(measurements, speaks_against, window=self.window, patience=self.patience)


@dataclass(frozen=True, kw_only=True)
class BatchSize(ProfilerRule):
    """Processors, GPU and GPU memory all have room: the batch may be too small.

    Formula: in most windows of a GPU, the 95th percentiles of the host's CPU, of the GPU's utilisation and of the GPU's
    memory are all below their thresholds.

    Args:
        cpu_threshold_p95: percent of the host's processors.
        gpu_threshold_p95: percent of utilisation.
        gpu_memory_threshold_p95: percent of the GPU's memory.
        window: rows that are judged together.
        patience: rows at the beginning of each attempt that are not judged.
        scan_interval_us: microseconds between evaluations.
    """

    advice: ClassVar[str] = "Raise the batch size (and the learning rate with it), or use a smaller instance type."

    cpu_threshold_p95: float = field(default=70, metadata=PERCENTAGE)
    gpu_threshold_p95: float = field(default=70, metadata=PERCENTAGE)
    gpu_memory_threshold_p95: float = field(default=70, metadata=PERCENTAGE)
    window: int = field(default=500, metadata=POSITIVE)
    patience: int = field(default=1000, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""
        shares = {host.name: measurements.cpu_share(host.name) for host in measurements.hosts}
        memory = {gpu: measurements.of(gpu, "memory_percent") for gpu in measurements.scopes("gpu", "memory_percent")}

        def speaks_against(gpu: Scope, points: Sequence[Point]) -> str:
            at_ms = {point.at_ms for point in points}
            three = (
                ("processors", shares.get(gpu.host, ()), self.cpu_threshold_p95),
                ("GPU", points, self.gpu_threshold_p95),
                ("GPU memory", memory.get(gpu, ()), self.gpu_memory_threshold_p95),
            )
            words = []
            for what, all_points, limit in three:
                own = [point for point in all_points if point.at_ms in at_ms]
                p95 = quantiles(own, (_P95,))[0] if own else limit
                if p95 >= limit:
                    return ""
                words.append(f"{what} {p95:.0f} %")
            return f"p95 of {', '.join(words)}"

        return _judged_windows(measurements, speaks_against, window=self.window, patience=self.patience)


@dataclass(frozen=True, kw_only=True)
class GPUMemoryIncrease(ProfilerRule):
    """Memory of a GPU jumps up while the program trains.

    Formula: mean of a window of memory percent - mean of the previous window > increase.

    Args:
        increase: percent of the GPU's memory.
        window: number of rows in a window.
        patience: rows at the beginning of each attempt that are not judged.
        scan_interval_us: microseconds between evaluations.
    """

    advice: ClassVar[str] = (
        "Look for tensors that are kept from step to step (losses summed without item(), outputs in lists), for "
        "batches of changing size, and for an evaluation that keeps its graph."
    )

    increase: float = field(default=5, metadata=POSITIVE)
    window: int = field(default=10, metadata=POSITIVE)
    patience: int = field(default=1000, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""
        gpus = measurements.scopes("gpu", "memory_percent")
        if not gpus:
            return not_judged(NO_GPU)
        evidence, figures, judged, violations, most_rows = [], {}, 0, 0, 0
        for gpu in gpus:
            points = measurements.of(gpu, "memory_percent")
            attempts = measurements.by_attempt(points)
            most_rows = max([most_rows, *map(num_rows, attempts)])
            # Each attempt fills the memory anew, which does not count as an increase.
            means_of = [
                [mean_of(part) for part in windows(after_patience(own, self.patience), self.window, least_points=1)]
                for own in attempts
            ]
            jumps = [after - before for means in means_of for before, after in pairwise(means)]
            if not jumps:
                continue
            judged += num_rows(points)
            violations += sum(jump > self.increase for jump in jumps)
            last = next(means[-1] for means in reversed(means_of) if means)
            figures[gpu.label] = {"greatest_increase_percent": round(max(jumps), 1), "memory_percent": last}
            evidence.append((max(jumps), f"{gpu.label}: memory rose by {max(0.0, max(jumps)):.1f} % at most"))
        if not evidence:
            return too_short(most_rows, self.patience)
        worst, line = max(evidence)
        return Verdict(
            has_issue=worst > self.increase,
            detail=f"{line} from one window of {self.window} datapoints to the next; the limit is {self.increase:g} %",
            evidence=tuple(text for _, text in evidence),
            num_datapoints=judged,
            num_violations=violations,
            figures=figures,
        )


@dataclass(frozen=True, kw_only=True)
class LoadBalancing(ProfilerRule):
    """One GPU of the job works much less than another.

    Formula: distance between the histograms of utilisation of two GPUs (the area between their distributions, in
    percent of utilisation) / mean utilisation of the busier > threshold. GPUs below 10 % utilisation are not compared
    with each other.

    Args:
        threshold: share of the busier GPU's work, 0 to 1.
        patience: rows at the beginning of each attempt that are not judged.
        scan_interval_us: microseconds between evaluations.
    """

    advice: ClassVar[str] = (
        "Give every rank the same amount of work: samplers that split evenly, batches of like length, pipeline stages "
        "of like cost; see also: clary stragglers JOB."
    )

    threshold: float = field(default=0.5, metadata=PERCENTAGE)
    patience: int = field(default=1000, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""
        gpus = measurements.scopes("gpu", "utilisation_percent")
        if not gpus:
            return not_judged(NO_GPU)
        if len(gpus) == 1:
            return not_judged("one GPU was measured: there is nothing to balance")
        points_of = {gpu: measurements.of(gpu, "utilisation_percent") for gpu in gpus}
        judged = {gpu: measurements.after_patience(points, self.patience) for gpu, points in points_of.items()}
        judged = {gpu: points for gpu, points in judged.items() if points}
        if len(judged) < 2:
            longest = (num_rows(own) for points in points_of.values() for own in measurements.by_attempt(points))
            return too_short(max(longest, default=0), self.patience)
        histograms = {gpu: _distribution(points) for gpu, points in judged.items()}
        means = {gpu: mean_of(points) for gpu, points in judged.items()}
        worst, pair = 0.0, (next(iter(judged)), next(iter(judged)))
        for one, other in combinations(judged, 2):
            busier = max(means[one], means[other])
            distance = _distance(histograms[one], histograms[other]) / busier if busier >= LEAST_BUSY else 0.0
            if distance > worst:
                worst, pair = distance, (one, other)
        low, high = sorted(pair, key=means.__getitem__)
        return Verdict(
            has_issue=worst > self.threshold,
            detail=(
                f"{low.label} works {means[low]:.0f} % of the time, {high.label} {means[high]:.0f} %; "
                f"their distance is {worst:.2f}, the limit {self.threshold:g}"
            ),
            evidence=tuple(f"{gpu.label}: {mean:.0f} % on average" for gpu, mean in means.items()),
            num_datapoints=sum(num_rows(points) for points in judged.values()),
            num_violations=int(worst > self.threshold),
            figures={gpu.label: {"utilisation_percent": round(mean, 1)} for gpu, mean in means.items()},
        )


def _judged_windows(measurements: Measurements, speaks_against: Judged, *, window: int, patience: int) -> Verdict:
    """Return the verdict by windows of utilisation; the rule fires if most windows of a GPU have a fault."""
    gpus = measurements.scopes("gpu", "utilisation_percent")
    if not gpus:
        return not_judged(NO_GPU)
    evidence, figures, rows, violations, most_rows = [], {}, 0, 0, 0
    for gpu in gpus:
        points = measurements.of(gpu, "utilisation_percent")
        attempts = measurements.by_attempt(points)
        most_rows = max([most_rows, *map(num_rows, attempts)])
        cut = [part for own in attempts for part in windows(after_patience(own, patience), window)]
        if not cut:
            continue
        against = [words for own in cut if (words := speaks_against(gpu, own))]
        rows, violations = rows + sum(map(num_rows, cut)), violations + len(against)
        share = len(against) / len(cut)
        mean = mean_of([point for own in cut for point in own])
        figures[gpu.label] = {"windows": len(cut), "against": len(against), "utilisation_percent": round(mean, 1)}
        last = f", the last with {against[-1]}" if against else ""
        evidence.append((share, f"{gpu.label}: {len(against)} of {len(cut)} windows{last}; {mean:.0f} % on average"))
    if not evidence:
        return too_short(most_rows, patience + window)
    worst, line = max(evidence)
    return Verdict(
        has_issue=worst > MOST_OF,
        detail=line,
        evidence=tuple(text for _, text in evidence),
        num_datapoints=rows,
        num_violations=violations,
        figures=figures,
    )


def _distribution(points: Sequence[Point]) -> list[float]:
    """Return the cumulative distribution: the share of rows up to each of `_BINS` limits of utilisation."""
    total = sum(point.count for point in points)
    counts = [0.0] * _BINS
    for point in points:
        counts[min(_BINS - 1, int(max(0.0, point.mean) * _BINS / 100))] += point.count / total
    passed = 0.0
    return [passed := passed + count for count in counts]


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the area between two distributions, in percent of utilisation."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) * 100 / _BINS
