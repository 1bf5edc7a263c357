"""CloudWatch's PutMetricData: a training script's own metrics, stored with the other metrics of its job.

Where: `dispatch` calls it; `services.metrics` reads the values under their own namespace and dimensions. A value
belongs to the job whose program sends it, or to the job in the dimension TrainingJobName; other metrics are refused.
The unit sent last for a metric is stored with the job. Values keep their exact times whatever StorageResolution is, so
that no time is rounded to 60 s. Sums of several values (StatisticValues) are accepted only if all values are equal.
Source: PutMetricData, MetricDatum (CloudWatch API reference).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from clary.base.errors import WireError
from clary.control.jobs.training_job import FinalMetric, TrainingJob
from clary.control.services.call import Call
from clary.control.store.errors import JobNotFound, MetricsFull

JOB_DIMENSION = "TrainingJobName"
RESERVED = ("AWS/", "/aws/sagemaker/")  # namespaces of the platform's own metrics
OLDEST, NEWEST = timedelta(days=14), timedelta(hours=2)  # limits of a timestamp, before and after now
RESOLUTIONS_S = (1, 60)
NO_UNIT = "None"  # CloudWatch's name for a missing unit
MAX_UNITS = 500  # maximum number of units stored with a job
MANY_UNITS = f"PutMetricData: units of the first {MAX_UNITS} metrics are kept; the others have unit {NO_UNIT}"
MAX_NAMESPACES = 100  # maximum number of namespaces stored with a job
MANY_NAMESPACES = (
    f"PutMetricData: the first {MAX_NAMESPACES} namespaces are kept; ListMetrics lists the others by name only"
)
# values in one request, repeats included; CloudWatch accepts 1000 data of 150 values with any counts
MAX_VALUES = 15_000
MAX_DATUM_VALUES = 150  # Values of one datum (MetricDatum, API reference)
MAX_NAME = 1024  # characters of a stored name, which each value repeats


async def put_metric_data(call: Call) -> Mapping[str, Any]:
    """Store values with their job.

    Raises: WireError InvalidParameterValue, InvalidParameterCombination, LimitExceeded or ThrottlingException, after
        which clients try again; then no value is stored, unless one of several jobs is deleted during the call.
    """
    params = call.params
    namespace = params["Namespace"]
    if namespace.startswith(RESERVED):
        raise _invalid(f"The value {namespace} for parameter Namespace is reserved: choose one of your own.")
    if params.get("EntityMetricData"):
        raise _invalid("EntityMetricData is not supported here: send the metrics as MetricData.")
    by_job: dict[str, list[FinalMetric]] = {}
    units: dict[str, dict[str, str]] = {}
    num_values = 0
    for datum in params.get("MetricData") or ():
        values = _counted_values(datum)
        num_values += sum(count for _, count in values)
        if num_values > MAX_VALUES:
            raise _invalid(f"A request has at most {MAX_VALUES} values: send the others in another request.")
        dimensions = _dimensions(datum)
        job_name = calling_job(call) or dimensions.get(JOB_DIMENSION)
        if not job_name:
            raise _invalid(
                f"The metric {datum['MetricName']} belongs to no training job: send it from a job's program, "
                f"or name the job in the dimension {JOB_DIMENSION}."
            )
        name = stored_name(namespace, datum["MetricName"], dimensions)
        at = _moment(datum, call.services.clock.now())
        if len(name) > MAX_NAME:
            raise _invalid(
                f"Namespace, name and dimensions of the metric {datum['MetricName']} must have at most {MAX_NAME} "
                f"characters together, got {len(name)}: use fewer or shorter dimensions."
            )
        stored = by_job.setdefault(job_name, [])
        for value, count in values:
            stored.extend([FinalMetric(name=name, value=value, at=at)] * count)
        units.setdefault(job_name, {})[name] = datum.get("Unit") or NO_UNIT
        if datum.get("StorageResolution") not in (None, *RESOLUTIONS_S):
            raise _invalid(
                f"StorageResolution of the metric {datum['MetricName']} must be 1 or 60, got "
                f"{datum['StorageResolution']}."
            )
    jobs = {job_name: await call.services.find_job(job_name) for job_name in by_job}
    if missing := next((name for name, job in jobs.items() if job is None), None):
        raise _no_job(missing)
    store = call.services.store
    try:
        found = {name: job for name, job in jobs.items() if job is not None}
        store.allowance.take(by_job, found, now_s=call.services.clock.monotonic())
    except MetricsFull as error:
        code = "ThrottlingException" if error.is_too_fast else "LimitExceeded"
        raise WireError(code, f"PutMetricData: {error.message}.") from error
    for job_name, values_of_job in by_job.items():
        try:
            await store.add_metrics(job_name, values_of_job)
            await _keep_units(call, job_name, namespace, units[job_name])
        except JobNotFound as error:
            raise _no_job(job_name) from error
    return {}


async def _keep_units(call: Call, job_name: str, namespace: str, units: Mapping[str, str]) -> None:
    """Store namespace and units of metrics with the job, unless they are stored already, which is the usual case."""

    def change(current: TrainingJob) -> TrainingJob:
        return _with_namespace(_with_units(current, units), namespace)

    job = await call.services.find_job(job_name)
    if job is not None and change(job) is not job:
        await call.services.hub.update(job_name, change)


def _with_namespace(job: TrainingJob, namespace: str) -> TrainingJob:
    if namespace in job.metric_namespaces:
        return job
    if len(job.metric_namespaces) < MAX_NAMESPACES:
        return replace(job, metric_namespaces=(*job.metric_namespaces, namespace))
    if MANY_NAMESPACES in job.warnings:
        return job
    return replace(job, warnings=(*job.warnings, MANY_NAMESPACES))


def _with_units(job: TrainingJob, units: Mapping[str, str]) -> TrainingJob:
    known = dict(job.metric_units)
    warnings = job.warnings
    for name, unit in units.items():
        if known.get(name, NO_UNIT) == unit:
            continue
        if name not in known and len(known) >= MAX_UNITS:
            warnings = tuple(dict.fromkeys((*warnings, MANY_UNITS)))
            continue
        known[name] = unit
    if known == job.metric_units and warnings == job.warnings:
        return job
    return replace(job, metric_units=known, warnings=warnings)


def calling_job(call: Call) -> str:
    """Return the name of the job whose key signed the call; empty for the owner."""
    return "" if call.grants is None else call.grants.job_name


def stored_name(namespace: str, metric: str, dimensions: Mapping[str, str]) -> str:
    """Return the name under which a metric is stored with its job.

    Args:
        namespace: CloudWatch namespace.
        metric: name of the metric in the namespace.
        dimensions: name -> value; TrainingJobName is omitted from the stored name.
    """
    told = ", ".join(f"{name}={value}" for name, value in sorted(dimensions.items()) if name != JOB_DIMENSION)
    return f"{namespace}/{metric} [{told}]" if told else f"{namespace}/{metric}"


def _counted_values(datum: Mapping[str, Any]) -> list[tuple[float, int]]:
    """Return the values of a datum with their counts, not yet counted out."""
    given = [name for name in ("Value", "Values", "StatisticValues") if datum.get(name) is not None]
    if len(given) != 1:
        raise WireError(
            "InvalidParameterCombination",
            f"The metric {datum['MetricName']} needs one of Value, Values and StatisticValues, got "
            f"{', '.join(given) or 'none'}.",
        )
    values: Sequence[float]
    counts: Sequence[float]
    if "StatisticValues" in given:
        values = [_single(datum["MetricName"], datum["StatisticValues"])]
        counts = [float(datum["StatisticValues"]["SampleCount"])]
    else:
        values = datum["Values"] if "Values" in given else [datum["Value"]]
        counts = datum.get("Counts") or [1.0] * len(values)
    if len(values) > MAX_DATUM_VALUES:
        raise _invalid(
            f"The metric {datum['MetricName']} has at most {MAX_DATUM_VALUES} Values in one datum, got {len(values)}: "
            "send the others in another datum."
        )
    if len(counts) != len(values):
        raise _invalid(f"Counts of the metric {datum['MetricName']} must be as many as its Values.")
    for value, count in zip(values, counts, strict=True):
        if not math.isfinite(value):
            raise _invalid(f"The value {value} of the metric {datum['MetricName']} is not a finite number.")
        if not 1 <= count <= MAX_VALUES or count != int(count):
            raise _invalid(f"Counts of the metric {datum['MetricName']} are whole numbers from 1 to {MAX_VALUES}.")
    return [(value, int(count)) for value, count in zip(values, counts, strict=True)]


def _single(metric: str, statistics: Mapping[str, float]) -> float:
    least, greatest = float(statistics["Minimum"]), float(statistics["Maximum"])
    total = least * float(statistics["SampleCount"])
    if least != greatest or not math.isfinite(least) or not math.isclose(total, statistics["Sum"], rel_tol=1e-6):
        raise _invalid(
            f"StatisticValues of the metric {metric} summarize different values, which cannot be drawn "
            "as a curve: send Values."
        )
    return least


def _dimensions(datum: Mapping[str, Any]) -> dict[str, str]:
    return {str(item["Name"]): str(item["Value"]) for item in datum.get("Dimensions") or ()}


def _moment(datum: Mapping[str, Any], now: datetime) -> datetime:
    at: datetime = datum.get("Timestamp") or now
    if not now - OLDEST <= at <= now + NEWEST:
        raise _invalid(
            f"The value {at.isoformat()} for parameter Timestamp of the metric {datum['MetricName']} must lie from two "
            "weeks before to two hours after now."
        )
    return at


def _no_job(name: str) -> WireError:
    return _invalid(f"There is no training job {name}, which the dimension {JOB_DIMENSION} names.")


def _invalid(message: str) -> WireError:
    return WireError("InvalidParameterValue", message)
