"""CloudWatch's GetMetricStatistics: statistics of jobs' metrics.

Source: GetMetricStatistics (CloudWatch); `services.metric_data` has GetMetricData, `services.metric_lists` ListMetrics.
Namespace `/aws/sagemaker/TrainingJobs`, with dimension `TrainingJobName`; or with dimension `Host`, value JOB/HOST, for
measurements of hosts (`services.instance_metrics`) and metrics that the service itself stores. All other namespaces
contain scripts' own metrics (`services.custom_metrics`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from clary.base.errors import WireError
from clary.control.jobs import host_metrics
from clary.control.services import custom_metrics, instance_metrics
from clary.control.services.call import Call
from clary.control.services.custom_metrics import NO_UNIT, calling_job
from clary.control.services.instance_metrics import Statistics

NAMESPACE = "/aws/sagemaker/TrainingJobs"
DIMENSION = "TrainingJobName"
HOST_DIMENSION = "Host"
MAX_DATAPOINTS = 1440  # maximum number of points in one answer
_UNITS = {**host_metrics.UNITS, **dict.fromkeys(instance_metrics.SERIES, instance_metrics.UNIT)}


async def get_metric_statistics(call: Call) -> Mapping[str, Any]:
    """Aggregate a job's metric into periods.

    Raises: WireError(InvalidParameterValue), WireError(InvalidParameterCombination).
    """
    params = call.params
    period_s = params["Period"]
    if period_s < 1:
        raise WireError("InvalidParameterValue", f"Period must be at least 1 second, got {period_s}.")
    wanted = params.get("Statistics") or ()
    if params.get("ExtendedStatistics"):
        raise WireError(
            "InvalidParameterCombination",
            "ExtendedStatistics are not supported here: ask for Statistics; got "
            f"{', '.join(params['ExtendedStatistics'])}.",
        )
    if not wanted:
        raise WireError("InvalidParameterCombination", "At least one of Statistics must be given.")
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
    periods = await statistics_by_period(
        call, params, start=params["StartTime"], end=params["EndTime"], period_s=period_s, unit=params.get("Unit")
    )
    unit = await unit_of(call, params)
    points = [
        {
            "Timestamp": datetime.fromtimestamp(start, UTC),
            "Unit": unit,
            **{name: value for name in wanted if (value := statistics.value(name)) is not None},
        }
        for start, statistics in sorted(periods.items())
    ]
    return {"Label": params["MetricName"], "Datapoints": points}


async def statistics_by_period(
    call: Call, metric: Mapping[str, Any], *, start: datetime, end: datetime, period_s: int, unit: str | None = None
) -> dict[int, Statistics]:
    """Return the statistics of each period with values, keyed by the period's start in seconds since 1970.

    Args:
        call: the call, which names the caller.
        metric: Namespace, MetricName and Dimensions.
        start: start of the time span; the period that contains it counts as a whole.
        end: end of the time span, exclusive.
        period_s: length of a period in seconds; periods begin at its multiples since 1970.
        unit: requested unit; a metric has values only in its own unit.
    """
    if unit is not None and unit != await unit_of(call, metric):
        return {}
    job_name, host, name = job_of(metric), _host_name(metric), metric["MetricName"]
    namespace = metric.get("Namespace") or ""
    if namespace != NAMESPACE:  # a script's metric, whose stored name omits the job's dimension
        job_name, host = _job_of_put(call, metric), ""
        name = _put_name(metric)
    if job_name is None and not _is_put(namespace):
        return {}
    if job_name is not None and host and name in instance_metrics.SERIES:
        return await instance_metrics.statistics_of(
            call, name, job_name=job_name, host=host, start=start, end=end, period_s=period_s
        )
    stored_name = host_metrics.stored_name(name, host) if host else name
    periods = await call.services.store.aggregates.by_period(
        job_name, stored_name, start=start, end=end, period_s=period_s
    )
    return {
        begin: Statistics(values.least, values.greatest, values.total / values.num_values, float(values.num_values))
        for begin, values in periods.items()
    }


async def unit_of(call: Call, metric: Mapping[str, Any]) -> str:
    """Return CloudWatch's name for a metric's unit.

    For a script's metric, this is the unit that PutMetricData named; of several jobs, the newest job's.
    """
    if (metric.get("Namespace") or "") == NAMESPACE:
        return _UNITS.get(metric["MetricName"], NO_UNIT) if _host_name(metric) else NO_UNIT
    job_name = _job_of_put(call, metric)
    if job_name is None and _is_put(metric.get("Namespace") or ""):
        job_name = await call.services.store.training.newest_job(_put_name(metric))
    job = None if job_name is None else await call.services.find_job(job_name)
    return NO_UNIT if job is None else job.metric_units.get(_put_name(metric), NO_UNIT)


def _is_put(namespace: str) -> bool:
    """Whether a namespace may hold metrics that scripts have put."""
    return bool(namespace) and not namespace.startswith(custom_metrics.RESERVED)


def _put_name(metric: Mapping[str, Any]) -> str:
    dimensions = {item["Name"]: str(item.get("Value")) for item in metric.get("Dimensions") or ()}
    return custom_metrics.stored_name(metric.get("Namespace") or "", metric["MetricName"], dimensions)


def _job_of_put(call: Call, metric: Mapping[str, Any]) -> str | None:
    """Return the job of a script's own metric: the calling job, else the job that the dimensions name.

    Without both, the metric stands for those of all jobs.
    """
    return calling_job(call) or dimension(metric, DIMENSION)


def job_of(metric: Mapping[str, Any]) -> str | None:
    """Return the name of the job that the dimensions name, directly or by one of its hosts; None without a job."""
    of_host = dimension(metric, HOST_DIMENSION)
    return of_host.partition("/")[0] if of_host is not None else dimension(metric, DIMENSION)


def _host_name(metric: Mapping[str, Any]) -> str:
    """Return the host that the dimensions name, or an empty string."""
    return (dimension(metric, HOST_DIMENSION) or "").partition("/")[2]


def dimension(metric: Mapping[str, Any], name: str) -> str | None:
    """Return the value of a dimension; None if the metric lacks the dimension."""
    for item in metric.get("Dimensions") or ():
        if item["Name"] == name:
            value = item.get("Value")  # ListMetrics may name a dimension without its value
            return None if value is None else str(value)
    return None
