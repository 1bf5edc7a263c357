"""Overall usage of a job's hosts, without a judgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clary.control.profiling.measurements import Measurements
from clary.control.profiling.quantiles import box_of
from clary.control.profiling.rule import ProfilerRule, Verdict, not_judged
from clary.control.series.queries import Point

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class OverallSystemUsage(ProfilerRule):
    """Says how processors, memory, disk, network and GPUs of each host are used; never fires.

    Formula: minimum, 5th, 50th and 95th percentile, maximum and mean of each resource's usage.

    Args:
        scan_interval_us: microseconds between evaluations.
    """

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far."""
        figures: dict[str, dict[str, float]] = {}
        evidence, rows = [], 0
        for host in measurements.hosts:
            own: dict[str, float] = {}
            words = []
            for name, unit, points in usages_of(measurements, host.name):
                box = box_of(points)
                if box is None:
                    continue
                rows = max(rows, box.count)
                for part in ("least", "p5", "p50", "p95", "greatest", "mean"):
                    own[f"{name} {part}"] = round(getattr(box, part), 2)
                words.append(f"{name} {box.p50:.0f} (p95 {box.p95:.0f}) {unit}")
            if own:
                figures[host.name] = own
                evidence.append(f"{host.name}: {', '.join(words)}")
        if not evidence:
            return not_judged("nothing was measured while the program ran")
        return Verdict(detail=evidence[0], evidence=tuple(evidence), num_datapoints=rows, figures=figures)


def usages_of(measurements: Measurements, host: str) -> list[tuple[str, str, Sequence[Point]]]:
    """Return name, unit and points of each resource that a host uses; an unmeasured resource has no points."""
    rows: list[tuple[str, str, Sequence[Point]]] = [
        ("processors", "%", measurements.cpu_share(host)),
        ("memory", "%", measurements.points(host, "host/memory_percent")),
    ]
    for name, series in (
        ("disk read", "host/disk_read_bytes_s"),
        ("disk written", "host/disk_write_bytes_s"),
        ("network received", "host/network_received_bytes_s"),
        ("network sent", "host/network_sent_bytes_s"),
    ):
        rows.append((name, "MiB/s", [_in_mib(point) for point in measurements.points(host, series)]))
    for quantity, name in (("utilisation_percent", "GPU {}"), ("memory_percent", "GPU {} memory")):
        rows += [
            (name.format(gpu.number), "%", measurements.of(gpu, quantity))
            for gpu in measurements.scopes("gpu", quantity)
            if gpu.host == host
        ]
    return rows


def _in_mib(point: Point) -> Point:
    parts = (point.least / MIB, point.greatest / MIB, point.mean / MIB, point.count, point.last / MIB)
    return Point(point.at_ms, *parts)
