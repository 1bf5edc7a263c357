"""Metrics of jobs: CloudWatch's statistics and SageMaker's metric operations.

Source: GetMetricStatistics, ListMetrics (CloudWatch); BatchPutMetrics (sagemaker-metrics). Namespace
`/aws/sagemaker/TrainingJobs`, dimension `TrainingJobName`; or `Host`, JOB/HOST, of what the service itself keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from clary.contract.errors import WireError
from clary.control.jobs import host_metrics
from clary.control.jobs.training_job import FinalMetric
from clary.control.services.call import Call
from clary.control.store.errors import JobNotFound

NAMESPACE = "/aws/sagemaker/TrainingJobs"
DIMENSION = "TrainingJobName"
HOST_DIMENSION = "Host"
MAX_DATAPOINTS = 1440  # of one GetMetricStatistics answer


async def get_metric_statistics(call: Call) -> Mapping[str, Any]:
    """Aggregate a job's metric into periods."""
    params = call.params
    period_s = params["Period"]
    if period_s < 1:
        raise WireError("InvalidParameterValue", f"Period must be at least 1 second, got {period_s}.")
    wanted = params.get("Statistics") or ()
    if not wanted:
        raise WireError(
            "InvalidParameterCombination", "At least one of Statistics must be given; ExtendedStatistics are not kept."
        )
    span_s = (params["EndTime"] - params["StartTime"]).total_seconds()
    if span_s <= 0:
        raise WireError("InvalidParameterCombination", "StartTime must be before EndTime.")
    if span_s / period_s > MAX_DATAPOINTS:
        raise WireError(
            "InvalidParameterCombination",
            f"You have requested up to {math.ceil(span_s / period_s):,} datapoints, which exceeds the limit of "
            f"{MAX_DATAPOINTS:,}. You may reduce the datapoints requested by increasing Period, or decreasing the time "
            "range.",
        )
    values = await _read(call, params["MetricName"], params["StartTime"], params["EndTime"])
    periods: dict[int, list[float]] = {}
    for value in values:
        if math.isnan(value.value):
            continue  # a loss that is not a number would turn the whole period into one
        periods.setdefault(int(value.at.timestamp()) // period_s * period_s, []).append(value.value)
    unit = host_metrics.UNITS.get(params["MetricName"], "None") if _host_name(call) else "None"
    points = [
        {"Timestamp": datetime.fromtimestamp(start, UTC), "Unit": unit, **_statistics(wanted, numbers)}
        for start, numbers in sorted(periods.items())
    ]
    return {"Label": params["MetricName"], "Datapoints": points}


async def list_metrics(call: Call) -> Mapping[str, Any]:
    """List the metrics of the job, or of the host, that the dimension names."""
    job_name, host = _job_name(call), _host_name(call)
    job = None if job_name is None else await call.services.store.get_job(job_name)
    if job is None or call.params.get("Namespace", NAMESPACE) != NAMESPACE:
        return {"Metrics": []}
    if host:
        record = job.hosts.get(host)
        names = () if record is None or record.facts.checkpoints is None else tuple(host_metrics.UNITS)
        dimension = {"Name": HOST_DIMENSION, "Value": f"{job.name}/{host}"}
    else:
        names = tuple(metric.name for metric in job.final_metrics)
        dimension = {"Name": DIMENSION, "Value": job.name}
    wanted = call.params.get("MetricName")
    return {
        "Metrics": [
            {"Namespace": NAMESPACE, "MetricName": name, "Dimensions": [dimension]}
            for name in names
            if wanted in (None, name)
        ]
    }


async def batch_put_metrics(call: Call) -> Mapping[str, Any]:
    """Store values that a program reports for its own job."""
    name = call.params["TrialComponentName"].removesuffix("-aws-training-job")
    values = [
        FinalMetric(name=item["MetricName"], value=float(item["Value"]), at=_as_time(item["Timestamp"]))
        for item in call.params["MetricData"]
    ]
    try:
        await call.services.store.add_metrics(name, values)
        await call.services.hub.record_metrics(name, values)
    except JobNotFound as error:
        raise _no_job(name) from error
    return {"Errors": []}


async def _read(call: Call, metric: str, start: datetime, end: datetime) -> Sequence[FinalMetric]:
    job_name = _job_name(call)
    if call.params.get("Namespace") != NAMESPACE or job_name is None:
        return []
    host = _host_name(call)
    name = host_metrics.stored_name(metric, host) if host else metric
    return await call.services.store.query_metrics(job_name, name, start, end)


def _job_name(call: Call) -> str | None:
    """Return the job that the dimensions name, by itself or by one of its hosts."""
    of_host = _dimension(call, HOST_DIMENSION)
    return of_host.partition("/")[0] if of_host is not None else _dimension(call, DIMENSION)


def _host_name(call: Call) -> str:
    """Return the host that the dimensions name; empty for none."""
    return (_dimension(call, HOST_DIMENSION) or "").partition("/")[2]


def _dimension(call: Call, name: str) -> str | None:
    for dimension in call.params.get("Dimensions") or ():
        if dimension["Name"] == name:
            value = dimension.get("Value")  # ListMetrics may name a dimension without its value
            return None if value is None else str(value)
    return None


def _no_job(name: str) -> WireError:
    return WireError("ResourceNotFound", f"There is no training job {name}.", http_status=404)


def _statistics(wanted: Sequence[str], numbers: Sequence[float]) -> dict[str, float]:
    everything = {
        "Average": sum(numbers) / len(numbers),
        "Sum": sum(numbers),
        "Minimum": min(numbers),
        "Maximum": max(numbers),
        "SampleCount": float(len(numbers)),
    }
    return {name: everything[name] for name in wanted if name in everything}


def _as_time(value: datetime | float) -> datetime:
    if isinstance(value, datetime):
        return value
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=float(value))
