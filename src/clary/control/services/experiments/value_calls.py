"""BatchPutMetrics and BatchGetMetrics: values that programs report for trial components, with steps.

Source: sagemaker-metrics. Values for the component of a training job are also metrics of the job, like the values of
its metric definitions: CloudWatch's operations and FinalMetricDataList show them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from clary.base.errors import WireError
from clary.control.jobs.training_job import FinalMetric
from clary.control.services.call import Call
from clary.control.services.experiments import job_components
from clary.control.services.experiments.summaries import owner_of
from clary.control.store.errors import JobNotFound, MetricsFull
from clary.control.store.tracking.component_metrics import Summary
from clary.control.store.tracking.experiment_rows import Kind

MAX_POINTS = 1000  # maximum number of values in the answer to one query; the answer tells whether values were cut off
_WIDTHS_S = {"OneMinute": 60, "FiveMinute": 300, "OneHour": 3600, "IterationNumber": None}
_STATISTICS: Mapping[str, Callable[[Summary], float]] = {
    "Min": lambda item: item.least,
    "Max": lambda item: item.greatest,
    "Avg": lambda item: item.mean,
    "Count": lambda item: float(item.count),
    "StdDev": lambda item: item.deviation,
    "Last": lambda item: item.last,
}


async def batch_put_metrics(call: Call) -> Mapping[str, Any]:
    """Store values of a component.

    Raises: WireError(ResourceNotFound); WireError(ValidationException) for a number that is no time, and for values
        beyond the limits of a job.
    """
    name = call.params["TrialComponentName"]
    values = [
        FinalMetric(
            name=item["MetricName"],
            value=float(item["Value"]),
            at=_as_time(item["Timestamp"]),
            step=item.get("Step"),
        )
        for item in call.params["MetricData"]
    ]
    store = call.services.store
    job_name = await _job_name(call, name)
    if job_name is not None:
        job = await call.services.find_job(job_name)
        if job is None:
            raise _no_component(name)
        try:
            store.allowance.take({job_name: values}, {job_name: job}, now_s=call.services.clock.monotonic())
            await store.add_metrics(job_name, values)
            await call.services.hub.record_metrics(job_name, values)
        except JobNotFound as error:
            raise _no_component(name) from error
        except MetricsFull as error:
            code = "ThrottlingException" if error.is_too_fast else "ValidationException"
            raise WireError(code, f"BatchPutMetrics: {error.message}.") from error
    elif not await store.experiments.values.add(name, values):
        raise _no_component(name)
    return {"Errors": []}


async def batch_get_metrics(call: Call) -> Mapping[str, Any]:
    """Answer each query by itself: a failing query does not affect the others."""
    return {"MetricQueryResults": [await _answer(call, query) for query in call.params["MetricQueries"]]}


async def _answer(call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
    by_step = query["XAxisType"] == "IterationNumber"
    if by_step != (query["Period"] == "IterationNumber"):
        return _refusal(f"Period {query['Period']} does not go with XAxisType {query['XAxisType']}.")
    start, end = query.get("Start"), query.get("End")
    if start is not None and end is not None and start > end:
        return _refusal(f"Start must not lie after End, got {start} and {end}.")
    try:
        owner = await job_components.owner_of_arn(call, query["ResourceArn"])
    except WireError as error:
        return _refusal(error.message)
    found, is_cut = await call.services.store.experiments.values.buckets(
        owner,
        query["MetricName"],
        width_s=_WIDTHS_S[query["Period"]],
        start=start,
        end=end,
        limit=MAX_POINTS,
    )
    statistic = _STATISTICS[query["MetricStat"]]
    points = [(begin, value) for begin, item in found if math.isfinite(value := statistic(item))]  # JSON has no NaN
    return {
        "Status": "Truncated" if is_cut else "Complete",
        "XAxisValues": [begin for begin, _ in points],
        "MetricValues": [value for _, value in points],
    }


def _refusal(message: str) -> dict[str, Any]:
    return {"Status": "ValidationError", "Message": message, "XAxisValues": [], "MetricValues": []}


async def _job_name(call: Call, component: str) -> str | None:
    """Return the name of a component's job; None if the component does not exist, or has no job."""
    if not component.lower().endswith(job_components.SUFFIX):
        return None
    name = component[: -len(job_components.SUFFIX)]
    if call.services.hub.live_job(name) is not None:  # usually
        return name
    stored = await call.services.store.experiments.get(Kind.COMPONENT, component)
    if stored is None:
        try:
            stored = await job_components.find_component(call, component)
        except WireError:
            return None
    owner = owner_of(stored)
    return owner.name if owner.of_job else None


def _no_component(name: str) -> WireError:
    return WireError("ResourceNotFound", f"There is no trial component {name}.", http_status=404)


def _as_time(value: datetime | float) -> datetime:
    if isinstance(value, datetime):
        return value
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=float(value))
    except (OverflowError, ValueError) as error:
        raise WireError("ValidationException", f"Timestamp must be a time, got {value}.") from error
