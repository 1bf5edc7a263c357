"""CloudWatch's ListMetrics: the metrics of the job or host that a dimension names, or of all jobs, newest first.

Source: ListMetrics, DimensionFilter (CloudWatch API reference): a filter names a dimension, with or without its value;
RecentlyActive omits metrics without a value in the last three hours; here, all metrics of jobs that have not changed in
that time. A page has at most 500 metrics.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from clary.base.errors import WireError
from clary.control.jobs import host_metrics
from clary.control.jobs.training_job import TrainingJob
from clary.control.services import instance_metrics
from clary.control.services.call import Call
from clary.control.services.custom_metrics import calling_job
from clary.control.services.metrics import DIMENSION, HOST_DIMENSION, NAMESPACE, dimension, job_of
from clary.control.store import tokens
from clary.control.store.errors import BadToken
from clary.control.store.job_queries import JobQuery

JOBS_OF_PAGE = 10  # each job needs queries of its record and of its hosts' series
MAX_METRICS = 500  # metrics of a page (ListMetrics, API reference)
RECENT = timedelta(hours=3)
_TOKEN_KEY = secrets.token_bytes(32)  # in memory only: a client fetches all pages from the same service process


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a page begins, as its token tells."""

    jobs_token: str | None = None  # of the page of jobs
    job_name: str = ""  # the first job of the page of jobs that is listed; empty for the first of all
    num_listed: int = 0  # fitting metrics of this job on earlier pages
    modified_after: datetime | None = None  # for RecentlyActive: the same on all pages


async def list_metrics(call: Call) -> Mapping[str, Any]:
    """List the metrics that match the filters; a page covers some jobs and may be empty.

    Raises: WireError(InvalidParameterValue) for a bad token.
    """
    params = call.params
    if params.get("OwningAccount", call.services.settings.account_id) != call.services.settings.account_id:
        return {"Metrics": []}  # there is only one account
    place = _place_of(call)
    names, jobs_token = await _names_of_jobs(call, place)
    if place.job_name in names:  # else it was deleted, and the page of jobs begins anew
        names = names[names.index(place.job_name) :]
    found: list[dict[str, Any]] = []
    for name in names:
        num_left_out = place.num_listed if name == place.job_name else 0
        job = await call.services.store.get_job(name)
        fitting = [] if job is None else await _fitting_metrics(call, job)
        num_fitting = num_left_out + MAX_METRICS - len(found)
        found += fitting[num_left_out:num_fitting]
        if num_fitting < len(fitting):
            return _page(call, found, replace(place, job_name=name, num_listed=num_fitting))
    if jobs_token is None:
        return {"Metrics": found}
    return _page(call, found, _Place(jobs_token=jobs_token, modified_after=place.modified_after))


def _page(call: Call, metrics: list[dict[str, Any]], following: _Place) -> dict[str, Any]:
    """Return a page, and the token of the page that begins at `following`."""
    moment = None if following.modified_after is None else following.modified_after.timestamp()
    position = [following.jobs_token, following.job_name, following.num_listed, moment]
    return {"Metrics": metrics, "NextToken": tokens.make_token(_TOKEN_KEY, query=_identity(call), position=position)}


def _place_of(call: Call) -> _Place:
    """Return where the requested page begins. Raises: WireError for a bad token."""
    token = call.params.get("NextToken")
    if token is None:
        return _Place(modified_after=call.services.clock.now() - RECENT if call.params.get("RecentlyActive") else None)
    try:
        jobs_token, name, num_listed, moment = tokens.read_token(_TOKEN_KEY, token, query=_identity(call))
    except BadToken as error:
        raise _bad_token(error) from error
    modified_after = None if moment is None else datetime.fromtimestamp(moment, UTC)
    return _Place(jobs_token=jobs_token, job_name=name, num_listed=num_listed, modified_after=modified_after)


def _identity(call: Call) -> str:
    """Return caller and request without its page, as a text: a token is valid only for requests with the same text."""
    asked = [(name, value) for name, value in sorted(call.params.items()) if name != "NextToken"]
    return repr((calling_job(call), asked))


def _bad_token(error: BadToken) -> WireError:
    return WireError("InvalidParameterValue", f"Invalid NextToken: {error.message}")


async def _names_of_jobs(call: Call, place: _Place) -> tuple[list[str], str | None]:
    """Return the calling or the named job, or else a page of all jobs and the token of the next page."""
    params = call.params
    is_put = params.get("Namespace", NAMESPACE) != NAMESPACE
    own = calling_job(call) if is_put else ""
    name = own or (dimension(params, DIMENSION) if is_put else job_of(params))
    if name:
        return [name], None
    query = JobQuery(
        modified_after=place.modified_after, descending=True, max_results=JOBS_OF_PAGE, next_token=place.jobs_token
    )
    try:
        page = await call.services.store.list_jobs(query)
    except BadToken as error:
        raise _bad_token(error) from error
    return [item.name for item in page.summaries], page.next_token


async def _fitting_metrics(call: Call, job: TrainingJob) -> list[dict[str, Any]]:
    """Return the metrics of a job that match the filters, in the same order on every page."""
    wanted, filters = call.params.get("MetricName"), call.params.get("Dimensions") or ()
    found = await _metrics_of(call, job, call.params.get("Namespace"))
    return [metric for metric in found if wanted in (None, metric["MetricName"]) and _fits(metric, filters)]


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

    Brackets without an equals sign are part of the metric's name, and a text without one is part of a value. If a value
    itself contains `, name=`, the text from there on is taken for another dimension.
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
