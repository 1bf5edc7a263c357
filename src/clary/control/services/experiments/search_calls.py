"""Search over training jobs, tuning jobs, experiments, trials and trial components.

Where: records have the members of their Describe operations, with tags and parents, and are filtered one by one
(`search_filters`). If the expression requires the name of a job, tuning job, component, trial or experiment, only that
record is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Call
from clary.control.services.experiments import (
    component_calls,
    experiment_calls,
    job_components,
    naming,
    search_filters,
    trial_calls,
)
from clary.control.services.experiments.search_properties import check_properties
from clary.control.services.job_descriptions import describe, for_search
from clary.control.services.tuning_descriptions import describe_tuning
from clary.control.store.tracking.experiment_rows import Kind, Tracked
from clary.control.store.tracking.experiments import TrackedQuery
from clary.control.wire.fitting import fit

TUNING_SHAPE = "HyperParameterTuningJobSearchEntity"
DEFAULT_SORT = "LastModifiedTime"
AT_ONCE = 200  # number of records to read and filter before other requests are served
MAX_MEMBERS = 10  # maximum number of components listed in a trial
_Key = tuple[int, int, Any, str]  # (value is missing, value is a text, value, name)


@dataclass(frozen=True)
class _Found:
    """One record: its name, and the members that filters read and the answer gives.

    For a matching training job only `key` is stored, because thousands of records would need much memory.
    """

    name: str
    record: Mapping[str, Any]
    key: _Key | None = None


async def search(call: Call) -> Mapping[str, Any]:
    """Return the page of records that match an expression."""
    params = call.params
    expression = params.get("SearchExpression")
    search_filters.check(expression)
    finder = _FINDERS.get(params["Resource"])
    if finder is None or params.get("CrossAccountFilterOption") == "CrossAccount":
        return {"Results": [], "TotalHits": {"Value": 0, "Relation": "EqualTo"}}  # this service has no such records
    member, find = finder
    check_properties(member, expression, sort_by=params.get("SortBy"), conditions=_conditions(call))
    records = await find(call, expression)
    # In a thread, because thousands of records would block the event loop.
    chosen = await asyncio.to_thread(_matching, records, expression, _conditions(call))
    page, token = await asyncio.to_thread(_page, call, chosen)
    shown = await _shown_jobs(call, page) if find is _training_jobs else [item.record for item in page]
    answer: dict[str, Any] = {
        "Results": [{member: record} for record in shown],
        "TotalHits": {"Value": len(chosen), "Relation": "EqualTo"},
    }
    return answer if token is None else {**answer, "NextToken": token}


def named(expression: Mapping[str, Any] | None, path: str) -> str | None:
    """Return the value that an expression requires of a property; None if it requires no value."""
    if not expression or expression.get("Operator", "And") != "And":
        return None
    for item in expression.get("Filters") or ():
        if item["Name"].lower() == path.lower() and item.get("Operator", "Equals") == "Equals":
            return str(item["Value"])
    return None


def _conditions(call: Call) -> Sequence[Mapping[str, Any]]:
    return call.params.get("VisibilityConditions") or ()


def _matching(
    records: Sequence[_Found], expression: Mapping[str, Any] | None, conditions: Sequence[Mapping[str, Any]]
) -> list[_Found]:
    return [item for item in records if item.key is not None or _fits(item.record, expression, conditions)]


def _fits(
    record: Mapping[str, Any], expression: Mapping[str, Any] | None, conditions: Sequence[Mapping[str, Any]]
) -> bool:
    return search_filters.is_visible(record, conditions) and search_filters.matches(record, expression)


def _page(call: Call, chosen: Sequence[_Found]) -> tuple[list[_Found], str | None]:
    """Return the requested page, and the token of the next page."""
    params = call.params
    by = _sorted_by(call)
    descending = params.get("SortOrder", "Descending") == "Descending"
    asked = repr((params.get("SearchExpression"), params.get("VisibilityConditions")))
    identity = ["search", params["Resource"], asked, by, descending]
    keyed = [(item.key or _key(item.name, item.record, by), item) for item in chosen]
    present = sorted((pair for pair in keyed if not pair[0][0]), key=lambda pair: pair[0], reverse=descending)
    missing = sorted((pair for pair in keyed if pair[0][0]), key=lambda pair: pair[0], reverse=descending)
    ordered = [*present, *missing]
    if params.get("NextToken"):
        with naming.api_errors():
            after = tuple(call.services.store.experiments.read_token(params["NextToken"], query=identity))
        ordered = [pair for pair in ordered if _comes_after(pair[0], after, descending=descending)]
    limit = params.get("MaxResults") or naming.DEFAULT_PAGE
    shown = ordered[:limit]
    token = None
    if len(ordered) > limit:
        token = call.services.store.experiments.make_token(query=identity, position=list(shown[-1][0]))
    return [item for _, item in shown], token


def _sorted_by(call: Call) -> str:
    return call.params.get("SortBy") or DEFAULT_SORT


def _key(name: str, record: Mapping[str, Any], by: str) -> _Key:
    value = search_filters.sort_value(record, by)
    return (1, 0, 0, name) if value is None else (0, *value, name)


def _comes_after(key: _Key, after: tuple[Any, ...], *, descending: bool) -> bool:
    if key[0] != after[0]:
        return bool(key[0] > after[0])  # records without a value come last in both directions
    return bool(key < after if descending else key > after)


async def _training_jobs(call: Call, expression: Mapping[str, Any] | None) -> list[_Found]:
    """Return the matching jobs, read a few at a time."""
    store = call.services.store
    name, status = named(expression, "TrainingJobName"), named(expression, "TrainingJobStatus")
    found: list[_Found] = []
    after = ""
    while True:
        jobs = await store.jobs_with(name=name, status=status, after=after, limit=AT_ONCE)
        tags = await store.experiments.tags_of([job.arn for job in jobs])
        found += await asyncio.to_thread(_fitting_jobs, call, jobs, tags, expression)
        if len(jobs) < AT_ONCE:
            return found
        after = jobs[-1].name


def _fitting_jobs(
    call: Call,
    jobs: Sequence[TrainingJob],
    tags: Mapping[str, Mapping[str, str]],
    expression: Mapping[str, Any] | None,
) -> list[_Found]:
    by, conditions = _sorted_by(call), _conditions(call)
    found = []
    for job in jobs:
        record = _job_record(call, job, tags)
        seen = {**record, "Metrics": record.get("FinalMetricDataList", ())}
        if _fits(seen, expression, conditions):
            found.append(_Found(job.name, {}, _key(job.name, seen, by)))
    return found


async def _shown_jobs(call: Call, page: Sequence[_Found]) -> list[dict[str, Any]]:
    """Return the members of the jobs of a page, without jobs that were deleted meanwhile."""
    found = [job for item in page if (job := await call.services.store.get_job(item.name)) is not None]
    tags = await call.services.store.experiments.tags_of([job.arn for job in found])
    return [for_search(_job_record(call, job, tags)) for job in found]


def _job_record(call: Call, job: TrainingJob, tags: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {**_described(call, job), "Tags": _tags(tags, job.arn)}


def _described(call: Call, job: TrainingJob) -> dict[str, Any]:
    services = call.services
    return describe(job, services.prices, services.settings, now=job.now(services.clock))


async def _experiments(call: Call, expression: Mapping[str, Any] | None) -> list[_Found]:
    things, tags = await _tracked(call, TrackedQuery(kind=Kind.EXPERIMENT, name=named(expression, "ExperimentName")))
    return [
        _Found(thing.name, {**experiment_calls.describe(thing), "Tags": _tags(tags, thing.arn)}) for thing in things
    ]


async def _trials(call: Call, expression: Mapping[str, Any] | None) -> list[_Found]:
    query = TrackedQuery(
        kind=Kind.TRIAL, name=named(expression, "TrialName"), parent=named(expression, "ExperimentName")
    )
    things, tags = await _tracked(call, query)
    store = call.services.store.experiments
    found = []
    for thing in things:
        members, _ = await store.page(
            TrackedQuery(kind=Kind.COMPONENT, trial=thing.name), max_results=MAX_MEMBERS, next_token=None
        )
        simple = [
            naming.without_none(
                {
                    "TrialComponentName": member.name,
                    "TrialComponentArn": member.arn,
                    "TrialComponentSource": _source(member),
                    "CreationTime": member.created_at,
                }
            )
            for member in members
        ]
        record = {**trial_calls.describe(thing), "Tags": _tags(tags, thing.arn), "TrialComponentSummaries": simple}
        found.append(_Found(thing.name, record))
    return found


async def _components(call: Call, expression: Mapping[str, Any] | None) -> list[_Found]:
    query = TrackedQuery(
        kind=Kind.COMPONENT,
        name=named(expression, "TrialComponentName"),
        trial=named(expression, "Parents.TrialName"),
        experiment=named(expression, "Parents.ExperimentName"),
        source=named(expression, "Source.SourceArn"),
    )
    things, tags = await _tracked(call, query)
    parents = await call.services.store.experiments.parents_of([thing.name for thing in things])
    found = []
    records: list[dict[str, Any]] = []
    for start in range(0, len(things), AT_ONCE):
        records += await component_calls.describe_all(call, things[start : start + AT_ONCE])
    for thing, record in zip(things, records, strict=True):
        above = [
            {"TrialName": parent.trial, "ExperimentName": parent.experiment} for parent in parents.get(thing.key, ())
        ]
        detail = {"SourceDetail": await _source_detail(call, thing)} if thing.source else {}
        found.append(_Found(thing.name, {**record, **detail, "Tags": _tags(tags, thing.arn), "Parents": above}))
    return found


async def _tuning_jobs(call: Call, expression: Mapping[str, Any] | None) -> list[_Found]:
    """Return all tuning jobs, or the tuning job that the expression names."""
    records = call.services.store.tuning
    name = named(expression, "HyperParameterTuningJobName")
    jobs = await records.all() if name is None else [job for job in [await records.get(name)] if job is not None]
    tags = await call.services.store.experiments.tags_of([job.arn for job in jobs])
    found = []
    for job in jobs:
        record = await describe_tuning(call.services, job)
        fitted = fit(TUNING_SHAPE, {**record, "Tags": _tags(tags, job.arn)}).document
        found.append(_Found(job.name, fitted))
    return found


async def _source_detail(call: Call, thing: Tracked) -> dict[str, Any]:
    job = await job_components.job_of(call, thing)
    if job is None:
        return {"SourceArn": thing.source}
    return {"SourceArn": thing.source, "TrainingJob": for_search(_described(call, job))}


async def _tracked(call: Call, query: TrackedQuery) -> tuple[list[Tracked], dict[str, dict[str, str]]]:
    store = call.services.store.experiments
    things = await store.all_of(query)
    return things, await store.tags_of([thing.arn for thing in things])


def _source(thing: Tracked) -> dict[str, str] | None:
    return {"SourceArn": thing.source, "SourceType": job_components.SOURCE_TYPE} if thing.source else None


def _tags(tags: Mapping[str, Mapping[str, str]], arn: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.get(arn, {}).items()]


_Finder = Callable[[Call, Mapping[str, Any] | None], Awaitable[list[_Found]]]
_FINDERS: Mapping[str, tuple[str, _Finder]] = {
    "TrainingJob": ("TrainingJob", _training_jobs),
    "HyperParameterTuningJob": ("HyperParameterTuningJob", _tuning_jobs),
    "Experiment": ("Experiment", _experiments),
    "ExperimentTrial": ("Trial", _trials),
    "ExperimentTrialComponent": ("TrialComponent", _components),
}
