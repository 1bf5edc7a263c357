"""Create, describe, update, delete and list trial components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clary.base.errors import WireError
from clary.control.services.call import Call
from clary.control.services.experiments import job_components, naming
from clary.control.services.experiments.summaries import metric_summaries
from clary.control.store.tracking.experiment_rows import Kind, Tracked

MEMBERS = (
    "DisplayName",
    "Status",
    "StartTime",
    "EndTime",
    "Parameters",
    "InputArtifacts",
    "OutputArtifacts",
    "MetadataProperties",
)
# Maps that UpdateTrialComponent extends -> maximum number of entries, from the shapes TrialComponentParameters and
# ...Artifacts.
MAPS = {"Parameters": 300, "InputArtifacts": 60, "OutputArtifacts": 60}
PLAIN = tuple(name for name in MEMBERS if name not in MAPS)
OF_SUMMARY = ("Status", "StartTime", "EndTime")


async def create_trial_component(call: Call) -> Mapping[str, Any]:
    """Store a new component."""
    document = {name: call.params[name] for name in MEMBERS if name in call.params}
    name = call.params["TrialComponentName"]
    component = naming.new_record(call, Kind.COMPONENT, name, document)
    with naming.api_errors():
        await call.services.store.experiments.create(component, naming.new_tags(call))
    return {"TrialComponentArn": component.arn}


async def describe_trial_component(call: Call) -> Mapping[str, Any]:
    """Return all members of a component, with a summary of its metrics."""
    component = await job_components.find_component(call, call.params["TrialComponentName"])
    return (await describe_all(call, [component]))[0]


async def update_trial_component(call: Call) -> Mapping[str, Any]:
    """Change the named members; other parameters and artifacts keep their values."""
    params = call.params
    component = await job_components.find_component(call, params["TrialComponentName"])
    now = call.services.clock.now()

    def change(thing: Tracked) -> Tracked:
        document = dict(thing.document)
        document |= {name: params[name] for name in PLAIN if name in params}
        for name, limit in MAPS.items():
            entries = {**document.get(name, {}), **params.get(name, {})}
            for key in params.get(f"{name}ToRemove") or ():
                entries.pop(key, None)
            if len(entries) > limit:
                raise WireError(
                    "ValidationException",
                    f"Trial component '{thing.name}' would have {len(entries)} {name}; at most {limit} fit.",
                )
            if entries or name in document:
                document[name] = entries
        return replace(thing, document=document, modified_at=max(now, thing.modified_at))

    with naming.api_errors():
        changed = await call.services.store.experiments.change(Kind.COMPONENT, component.name, change)
    return {"TrialComponentArn": changed.arn}


async def delete_trial_component(call: Call) -> Mapping[str, Any]:
    """Delete a component that belongs to no trial."""
    with naming.api_errors():
        gone = await call.services.store.experiments.remove(Kind.COMPONENT, call.params["TrialComponentName"])
    return {"TrialComponentArn": gone.arn}


async def list_trial_components(call: Call) -> Mapping[str, Any]:
    """List summaries of components: of all, or of the components of an experiment, a trial or a job.

    Raises: WireError(ValidationException), WireError(ResourceNotFound).
    """
    filters = {name: call.params.get(name) for name in ("ExperimentName", "TrialName", "SourceArn")}
    given = [name for name, value in filters.items() if value is not None]
    if len(given) > 1:
        raise WireError("ValidationException", f"Give one of {', '.join(filters)}, got {' and '.join(given)}.")
    if filters["SourceArn"] is not None:
        await job_components.ensure_of_source(call, filters["SourceArn"])
    query = naming.listing(
        call,
        Kind.COMPONENT,
        experiment=filters["ExperimentName"],
        trial=filters["TrialName"],
        source=filters["SourceArn"],
    )
    found, token = await naming.page_of(call, query)
    return {"TrialComponentSummaries": [await _summary(call, thing) for thing in found], **token}


async def describe_all(call: Call, components: Sequence[Tracked]) -> list[dict[str, Any]]:
    """Return the members of components; a stored member overrides the member derived from the component's job."""
    metrics = await metric_summaries(call, components)
    found = []
    for thing in components:
        kept = _document(thing).get("Metrics", ())
        members = {**await _members(call, thing), "Metrics": [*kept, *metrics.get(thing.key, ())]}
        found.append(members)
    return found


async def _members(call: Call, thing: Tracked) -> dict[str, Any]:
    job = await job_components.job_of(call, thing)
    of_job = {} if job is None else job_components.describe_job(job)
    document = _document(thing)
    merged = {**of_job, **document}
    for name in MAPS:
        if name in of_job and name in document:
            merged[name] = {**of_job[name], **document[name]}
    source = {"Source": {"SourceArn": thing.source, "SourceType": job_components.SOURCE_TYPE}} if thing.source else {}
    return {
        "TrialComponentName": thing.name,
        "TrialComponentArn": thing.arn,
        "DisplayName": thing.name,
        **source,
        **{name: {} for name in MAPS},  # members that clients expect
        **merged,
        **naming.times(thing),
    }


def _document(thing: Tracked) -> dict[str, Any]:
    """Return the stored members of a component, without the mark that its job was deleted."""
    return naming.document_of(thing, "DescribeTrialComponentResponse")


async def _summary(call: Call, thing: Tracked) -> dict[str, Any]:
    members = await _members(call, thing)
    source = {"TrialComponentSource": members["Source"]} if "Source" in members else {}
    return {
        "TrialComponentName": thing.name,
        "TrialComponentArn": thing.arn,
        "DisplayName": members["DisplayName"],
        **source,
        **{name: members[name] for name in OF_SUMMARY if name in members},
        **naming.times(thing),
    }
