"""GPUs that idle while another part of their host is busy: its processors, or its disks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from clary.control.profiling.measurements import Measurements
from clary.control.profiling.quantiles import num_rows
from clary.control.profiling.rule import NO_GPU, PERCENTAGE, POSITIVE, ProfilerRule, Verdict, not_judged, too_short
from clary.control.series.queries import Point


@dataclass(frozen=True, kw_only=True)
class CPUBottleneck(ProfilerRule):
    """GPUs wait while the processors of their host are busy.

    Formula: rows with CPU > cpu_threshold and GPU < gpu_threshold are more than `threshold` percent of a GPU's rows;
    CPU is all processors of the host together, 0 to 100.

    Args:
        threshold: percent of the rows above which the rule fires.
        gpu_threshold: percent of utilisation below which a GPU waits.
        cpu_threshold: percent of a host's processors above which they are busy.
        patience: rows at the beginning of each attempt that are not judged.
        scan_interval_us: microseconds between evaluations.
    """

    advice: ClassVar[str] = (
        "Give the host more processors a GPU, raise the number of data loading workers, move preprocessing out of the "
        "training loop or onto the GPU, or store the data preprocessed."
    )

    threshold: float = field(default=50, metadata=PERCENTAGE)
    gpu_threshold: float = field(default=10, metadata=PERCENTAGE)
    cpu_threshold: float = field(default=90, metadata=PERCENTAGE)
    patience: int = field(default=1000, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""
        return _bottleneck(
            measurements,
            measurements.cpu_share,
            words=("processors", self.cpu_threshold),
            gpu_threshold=self.gpu_threshold,
            threshold=self.threshold,
            patience=self.patience,
        )


@dataclass(frozen=True, kw_only=True)
class IOBottleneck(ProfilerRule):
    """GPUs wait while processors of the machine wait for disks.

    Formula: rows with I/O wait > io_threshold and GPU < gpu_threshold are more than `threshold` percent of a GPU's
    rows; I/O wait is the whole machine's, in percent of the host's processors.

    Args:
        threshold: percent of the rows above which the rule fires.
        gpu_threshold: percent of utilisation below which a GPU waits.
        io_threshold: percent of I/O wait above which disks are slow.
        patience: rows at the beginning of each attempt that are not judged.
        scan_interval_us: microseconds between evaluations.
    """

    advice: ClassVar[str] = (
        "Put the data on a faster disk or into memory, store it in fewer and larger files, read ahead with more data "
        "loading workers, or write checkpoints less often."
    )

    threshold: float = field(default=50, metadata=PERCENTAGE)
    gpu_threshold: float = field(default=10, metadata=PERCENTAGE)
    io_threshold: float = field(default=50, metadata=PERCENTAGE)
    patience: int = field(default=1000, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""
        return _bottleneck(
            measurements,
            measurements.io_wait_share,
            words=("disks", self.io_threshold),
            gpu_threshold=self.gpu_threshold,
            threshold=self.threshold,
            patience=self.patience,
        )


def _bottleneck(
    measurements: Measurements,
    share_of: Callable[[str], Sequence[Point]],
    *,
    words: tuple[str, float],
    gpu_threshold: float,
    threshold: float,
    patience: float,
) -> Verdict:
    """Return the verdict on GPUs with little load while `share_of` of their host is above its limit."""
    what, limit = words
    gpus = measurements.scopes("gpu", "utilisation_percent")
    if not gpus:
        return not_judged(NO_GPU)
    figures: dict[str, dict[str, float]] = {}
    evidence, judged, violations, most_rows, num_late = [], 0, 0, 0, 0
    for gpu in gpus:
        points = measurements.of(gpu, "utilisation_percent")
        most_rows = max([most_rows, *map(num_rows, measurements.by_attempt(points))])
        busy = {point.at_ms: point.mean for point in share_of(gpu.host)}
        late = measurements.after_patience(points, patience)
        num_late += len(late)
        rows = [point for point in late if point.at_ms in busy]
        if not rows:
            continue
        both = num_rows(point for point in rows if point.mean < gpu_threshold and busy[point.at_ms] > limit)
        share = 100 * both / num_rows(rows)
        judged, violations = judged + num_rows(rows), violations + both
        figures[gpu.label] = {"bottleneck_percent": round(share, 1), "datapoints": num_rows(rows)}
        evidence.append((share, f"{gpu.label}: {share:.0f} % of {num_rows(rows)} datapoints"))
    if not evidence and num_late:
        return not_judged(f"how busy {what} were was not measured")
    if not evidence:
        return too_short(most_rows, patience)
    worst, line = max(evidence)
    condition = f"{what} above {limit:g} % and GPU below {gpu_threshold:g} %"
    return Verdict(
        has_issue=worst > threshold,
        detail=f"{line} have {condition}; the limit is {threshold:g} %",
        evidence=tuple(text for _, text in evidence),
        num_datapoints=judged,
        num_violations=violations,
        figures=figures,
    )
