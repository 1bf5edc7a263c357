"""CloudWatch's metrics of instances, from the series that hosts send.

Where: `services.metrics` reads these for the dimension `Host`, JOB/algo-N; `services.metric_lists` lists them.
Source: "Amazon SageMaker AI metrics in Amazon CloudWatch" (developer guide), training jobs: CPUUtilization and the two
GPU metrics count each core and each GPU as 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from clary.base.errors import ContractError, WireError
from clary.control.series.queries import Point, Series, SeriesQuery
from clary.control.services.call import Call

UNIT = "Percent"
MS_PER_S = 1000
# Metric -> pattern of its series; the values of several matching series are added.
SERIES: Mapping[str, str] = {
    "CPUUtilization": "host/cpu_percent",
    "MemoryUtilization": "host/memory_percent",
    "DiskUtilization": "host/disk_used_percent",
    "GPUUtilization": "gpu-*/utilisation_percent",
    "GPUMemoryUtilization": "gpu-*/memory_percent",
}


@dataclass(frozen=True, slots=True)
class Statistics:
    """CloudWatch's statistics of one period."""

    least: float
    greatest: float
    mean: float
    count: float

    def value(self, statistic: str) -> float | None:
        """Return a statistic by CloudWatch's name; None if it is not stored."""
        known = {
            "Average": self.mean,
            "Sum": self.mean * self.count,
            "Minimum": self.least,
            "Maximum": self.greatest,
            "SampleCount": self.count,
        }
        return known.get(statistic)


async def statistics_of(
    call: Call, metric: str, *, job_name: str, host: str, start: datetime, end: datetime, period_s: int
) -> dict[int, Statistics]:
    """Return start of a period, in seconds since 1970 -> statistics of an instance metric.

    Minimum and maximum over several GPUs are the sums of each GPU's value, because roll-ups do not contain the GPUs'
    sum at one moment.

    Args:
        call: provides the store.
        metric: a key of `SERIES`.
        job_name: name of the job.
        host: such as algo-1.
        start: aware time; the period that contains it counts as a whole.
        end: aware time, exclusive.
        period_s: length of a period in seconds; periods begin at its multiples since 1970.
    Raises: WireError(InvalidParameterCombination).
    """
    try:
        query = SeriesQuery(
            job_name=job_name,
            host=host,
            names=SERIES[metric],
            start_ms=int(start.timestamp() * MS_PER_S),
            end_ms=int(end.timestamp() * MS_PER_S),
            step_ms=period_s * MS_PER_S,
        )
        answer = await call.services.store.series.query(query)
    except ContractError as error:
        raise WireError("InvalidParameterCombination", error.message) from error
    return _added(answer.series)


async def known_metrics(call: Call, job_name: str) -> dict[str, list[str]]:
    """Return host -> the instance metrics for which it has values."""
    query_of = {metric: _query(job_name, pattern) for metric, pattern in SERIES.items()}
    return {
        host: [metric for metric, query in query_of.items() if any(query.wants(name) for name in names)]
        for host, names in sorted((await call.services.store.series.names(job_name)).items())
    }


def _query(job_name: str, pattern: str) -> SeriesQuery:
    return SeriesQuery(job_name=job_name, names=pattern, start_ms=0, end_ms=1, step_ms=1)


def _added(series: Sequence[Series]) -> dict[int, Statistics]:
    by_start: dict[int, list[Point]] = {}
    for one in series:
        for point in one.points:
            by_start.setdefault(point.at_ms // MS_PER_S, []).append(point)
    return {
        start: Statistics(
            least=sum(point.least for point in points),
            greatest=sum(point.greatest for point in points),
            mean=sum(point.mean for point in points),
            count=max(point.count for point in points),
        )
        for start, points in sorted(by_start.items())
    }
