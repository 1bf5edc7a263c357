"""The stragglers of a job over all the measured time, for its report.

Where: `job_measurements` calls it; the page `stragglers` shows stragglers of the last minutes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from clary.control.analysis.stragglers import PARTS, HostFacts, RankSteps, StepTimes, StragglerVerdict, judge
from clary.control.profiling.measurements import Measurements, Scope

NUM_MOMENTS = 48  # number of parts of the measured time; a straggler was slow in most parts


def whole_verdict(measurements: Measurements) -> StragglerVerdict:
    """Return the verdict on slow ranks; it names no rank if ranks have no steps."""
    ranks = measurements.scopes("rank", "step_s")
    start_ms = measurements.began_ms or 0
    width_ms = max(1, (measurements.until_ms - start_ms) // NUM_MOMENTS)
    steps = [
        RankSteps(rank=rank.number, host=rank.host, moments=_moments(measurements, rank, start_ms, width_ms))
        for rank in ranks
    ]
    facts = {host.name: _facts(measurements, host.name) for host in measurements.hosts}
    return judge(steps, facts, has_gpus=any(host.num_gpus for host in measurements.hosts))


def _moments(measurements: Measurements, rank: Scope, start_ms: int, width_ms: int) -> Mapping[int, StepTimes]:
    """Return part of the measured time -> mean times of a rank's steps."""
    values: dict[int, dict[str, list[float]]] = {}
    for quantity in ("step_s", *PARTS):
        for point in measurements.of(rank, quantity):
            own = values.setdefault((point.at_ms - start_ms) // width_ms, {})
            own.setdefault(quantity, []).append(point.mean)
    return {
        moment: StepTimes(**{name: statistics.fmean(found) for name, found in own.items()})
        for moment, own in sorted(values.items())
        if "step_s" in own
    }


def _facts(measurements: Measurements, host: str) -> HostFacts:
    return HostFacts(
        refused_percent=_median(measurements, host, "host/cpu_throttled_time_percent"),
        rtt_ms=_median(measurements, host, "host/network_rtt_ms"),
        resent_percent=_median(measurements, host, "host/network_resent_percent"),
    )


def _median(measurements: Measurements, host: str, name: str) -> float | None:
    points = measurements.points(host, name)
    return statistics.median(point.mean for point in points) if points else None
