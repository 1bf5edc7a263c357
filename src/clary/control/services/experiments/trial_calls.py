"""Create, describe, update, delete and list trials, and put components into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clary.base.errors import WireError
from clary.control.services.call import Call
from clary.control.services.experiments import job_components, naming
from clary.control.store.tracking.experiment_rows import Kind, Tracked

OF_SUMMARY = ("TrialName", "TrialArn", "DisplayName", "CreationTime", "LastModifiedTime")


async def create_trial(call: Call) -> Mapping[str, Any]:
    """Store a new trial of an experiment."""
    params = call.params
    experiment = await naming.find(call, Kind.EXPERIMENT, params["ExperimentName"])
    document = {name: params[name] for name in ("DisplayName", "MetadataProperties") if name in params}
    trial = naming.new_record(call, Kind.TRIAL, params["TrialName"], document, parent=experiment.name)
    with naming.api_errors():
        await call.services.store.experiments.create(trial, naming.new_tags(call))
    return {"TrialArn": trial.arn}


async def describe_trial(call: Call) -> Mapping[str, Any]:
    """Return all members of a trial."""
    return describe(await naming.find(call, Kind.TRIAL, call.params["TrialName"]))


async def update_trial(call: Call) -> Mapping[str, Any]:
    """Change the display name of a trial."""
    changes = {"DisplayName": call.params["DisplayName"]} if "DisplayName" in call.params else {}
    now = call.services.clock.now()

    def change(thing: Tracked) -> Tracked:
        return replace(thing, document={**thing.document, **changes}, modified_at=max(now, thing.modified_at))

    with naming.api_errors():
        changed = await call.services.store.experiments.change(Kind.TRIAL, call.params["TrialName"], change)
    return {"TrialArn": changed.arn}


async def delete_trial(call: Call) -> Mapping[str, Any]:
    """Delete a trial that has no components."""
    with naming.api_errors():
        gone = await call.services.store.experiments.remove(Kind.TRIAL, call.params["TrialName"])
    return {"TrialArn": gone.arn}


async def list_trials(call: Call) -> Mapping[str, Any]:
    """List summaries of all trials, of an experiment's trials, or of the trials that contain a component.

    Raises: WireError(ValidationException), WireError(ResourceNotFound).
    """
    experiment, component = call.params.get("ExperimentName"), call.params.get("TrialComponentName")
    if experiment is not None and component is not None:
        raise WireError("ValidationException", "Give ExperimentName or TrialComponentName, not both.")
    query = naming.listing(call, Kind.TRIAL, parent=experiment, component=component)
    found, token = await naming.page_of(call, query)
    return {"TrialSummaries": [naming.only(describe(thing), OF_SUMMARY) for thing in found], **token}


async def associate_trial_component(call: Call) -> Mapping[str, Any]:
    """Add a component to a trial; a repeated call does nothing."""
    component = await job_components.find_component(call, call.params["TrialComponentName"])
    now = call.services.clock.now()
    with naming.api_errors():
        trial, component = await call.services.store.experiments.join(call.params["TrialName"], component.name, at=now)
    return {"TrialComponentArn": component.arn, "TrialArn": trial.arn}


async def disassociate_trial_component(call: Call) -> Mapping[str, Any]:
    """Remove a component from a trial; both continue to exist."""
    with naming.api_errors():
        trial, component = await call.services.store.experiments.part(
            call.params["TrialName"], call.params["TrialComponentName"]
        )
    return {"TrialComponentArn": component.arn, "TrialArn": trial.arn}


def describe(thing: Tracked) -> dict[str, Any]:
    """Return the members of a trial."""
    return {
        "TrialName": thing.name,
        "TrialArn": thing.arn,
        "ExperimentName": thing.parent,
        "DisplayName": thing.name,
        **naming.document_of(thing, "DescribeTrialResponse"),
        **naming.times(thing),
    }
