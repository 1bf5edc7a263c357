"""CloudWatch's ListMetrics: the metrics of the job or host that a dimension names, or of all jobs, newest first.

Source: ListMetrics, DimensionFilter (CloudWatch API reference): a filter names a dimension, with or without its value;
RecentlyActive omits metrics without a value in the last three hours; here, all metrics of jobs that have not changed in
that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from clary.base.errors import WireError
from clary.control.jobs import host_metrics
from clary.control.jobs.training_job import TrainingJob
from clary.control.services import instance_metrics
from clary.control.services.call import Call
from clary.control.services.custom_metrics import calling_job
from clary.control.services.metrics import DIMENSION, HOST_DIMENSION, NAMESPACE, dimension, job_of
from clary.control.store.errors import BadToken
from clary.control.store.job_queries import JobQuery

JOBS_OF_PAGE = 10  # each job needs queries of its record and of its hosts' series
RECENT = timedelta(hours=3)


async def list_metrics(call: Call) -> Mapping[str, Any]:
    """List the metrics that match the filters; a page covers some jobs and may be empty."""
    params = call.params
    if params.get("OwningAccount", call.services.settings.account_id) != call.services.settings.account_id:
        return {"Metrics": []}  # there is only one account
    jobs, token = await _jobs(call)
    found: list[dict[str, Any]] = []
    for job in jobs:
        found += await _metrics_of(call, job, params.get("Namespace"))
    wanted, filters = params.get("MetricName"), params.get("Dimensions") or ()
    fitting = [metric for metric in found if wanted in (None, metric["MetricName"]) and _fits(metric, filters)]
    return {"Metrics": fitting} if token is None else {"Metrics": fitting, "NextToken": token}


async def _jobs(call: Call) -> tuple[list[TrainingJob], str | None]:
    """Return the calling or the named job, or else a page of all jobs and the token of the next page."""
    params, store = call.params, call.services.store
    is_put = params.get("Namespace", NAMESPACE) != NAMESPACE
    own = calling_job(call) if is_put else ""
    name = own or (dimension(params, DIMENSION) if is_put else job_of(params))
    if name:
        job = await store.get_job(name)
        return ([] if job is None else [job]), None
    recent = call.services.clock.now() - RECENT if params.get("RecentlyActive") else None
    query = JobQuery(
        modified_after=recent, descending=True, max_results=JOBS_OF_PAGE, next_token=params.get("NextToken")
    )
    try:
        page = await store.list_jobs(query)
    except BadToken as error:
        raise WireError("InvalidParameterValue", f"Invalid NextToken: {error.message}") from error
    jobs = [job for item in page.summaries if (job := await store.get_job(item.name)) is not None]
    return jobs, page.next_token


async def _metrics_of(call: Call, job: TrainingJob, namespace: str | None) -> list[dict[str, Any]]:
    """Return the metrics of a job, and of its hosts, in a namespace; None stands for all namespaces."""
    found = await _platform_metrics(call, job) if namespace in (None, NAMESPACE) else []
    wanted = sorted(job.metric_namespaces) if namespace is None else [] if namespace == NAMESPACE else [namespace]
    for one in wanted:
        found += await _put_metrics(call, job, one)
    return found


async def _platform_metrics(call: Call, job: TrainingJob) -> list[dict[str, Any]]:
    """Return the metrics that the platform itself stores for a job and its hosts."""
    names = [(DIMENSION, job.name, metric.name) for metric in job.final_metrics]
    measured = await instance_metrics.known_metrics(call, job.name)
    for host in dict.fromkeys((*job.hosts, *measured)):
        record = job.hosts.get(host)
        kept = () if record is None or record.facts.checkpoints is None else tuple(host_metrics.UNITS)
        names += [(HOST_DIMENSION, f"{job.name}/{host}", name) for name in (*measured.get(host, ()), *kept)]
    return [
        {"Namespace": NAMESPACE, "MetricName": name, "Dimensions": [{"Name": key, "Value": value}]}
        for key, value, name in names
    ]


async def _put_metrics(call: Call, job: TrainingJob, namespace: str) -> list[dict[str, Any]]:
    """Return the metrics of a namespace that the script of a job has stored.

    A name that begins with several of the job's namespaces (`A/B/c` with A and A/B) belongs to the longest.
    """
    inner = tuple(f"{other}/" for other in job.metric_namespaces if other.startswith(f"{namespace}/"))
    own = [{"Name": DIMENSION, "Value": job.name}]
    listed = []
    for stored in await call.services.store.curves.names(job.name, prefix=f"{namespace}/"):
        if not stored.startswith(inner):
            name, dimensions = _read_name(stored.removeprefix(f"{namespace}/"))
            listed.append({"Namespace": namespace, "MetricName": name, "Dimensions": [*own, *dimensions]})
    return listed


def _read_name(stored: str) -> tuple[str, list[dict[str, str]]]:
    """Return the metric and the dimensions in a name that `custom_metrics.stored_name` made, without its namespace.

    Brackets without an equals sign are part of the metric's name, and a text without one is part of a value. Of a value
    that itself contains `, name=`, the rest is taken for a dimension.
    """
    start = stored.rfind(" [") if stored.endswith("]") else -1
    while start > 0 and "=" not in stored[start:].partition(", ")[0]:
        start = stored.rfind(" [", 0, start)
    if start <= 0:
        return stored, []
    dimensions: list[dict[str, str]] = []
    for part in stored[start + 2 : -1].split(", "):
        key, equals, value = part.partition("=")
        if equals:
            dimensions.append({"Name": key, "Value": value})
        else:
            dimensions[-1]["Value"] += f", {part}"
    return stored[:start], dimensions


def _fits(metric: Mapping[str, Any], filters: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a metric has every dimension of the filters, with the filter's value if it has one."""
    values = {item["Name"]: item["Value"] for item in metric["Dimensions"]}
    return all(item["Name"] in values and item.get("Value") in (None, values[item["Name"]]) for item in filters)
