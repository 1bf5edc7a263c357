"""Create, describe, update, delete and list experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clary.control.services.call import Call
from clary.control.services.experiments import naming
from clary.control.store.tracking.experiment_rows import Kind, Tracked

UPDATABLE = ("DisplayName", "Description")
OF_SUMMARY = ("ExperimentName", "ExperimentArn", "DisplayName", "CreationTime", "LastModifiedTime")


async def create_experiment(call: Call) -> Mapping[str, Any]:
    """Store a new experiment."""
    document = {name: call.params[name] for name in UPDATABLE if name in call.params}
    experiment = naming.new_record(call, Kind.EXPERIMENT, call.params["ExperimentName"], document)
    with naming.api_errors():
        await call.services.store.experiments.create(experiment, naming.new_tags(call))
    return {"ExperimentArn": experiment.arn}


async def describe_experiment(call: Call) -> Mapping[str, Any]:
    """Return all members of an experiment."""
    return describe(await naming.find(call, Kind.EXPERIMENT, call.params["ExperimentName"]))


async def update_experiment(call: Call) -> Mapping[str, Any]:
    """Change the display name and the description of an experiment."""
    changes = {name: call.params[name] for name in UPDATABLE if name in call.params}
    now = call.services.clock.now()

    def change(thing: Tracked) -> Tracked:
        return replace(thing, document={**thing.document, **changes}, modified_at=max(now, thing.modified_at))

    with naming.api_errors():
        changed = await call.services.store.experiments.change(Kind.EXPERIMENT, call.params["ExperimentName"], change)
    return {"ExperimentArn": changed.arn}


async def delete_experiment(call: Call) -> Mapping[str, Any]:
    """Delete an experiment that has no trials."""
    with naming.api_errors():
        gone = await call.services.store.experiments.remove(Kind.EXPERIMENT, call.params["ExperimentName"])
    return {"ExperimentArn": gone.arn}


async def list_experiments(call: Call) -> Mapping[str, Any]:
    """List summaries of experiments."""
    found, token = await naming.page_of(call, naming.listing(call, Kind.EXPERIMENT))
    return {"ExperimentSummaries": [naming.only(describe(thing), OF_SUMMARY) for thing in found], **token}


def describe(thing: Tracked) -> dict[str, Any]:
    """Return the members of an experiment."""
    return {
        "ExperimentName": thing.name,
        "ExperimentArn": thing.arn,
        "DisplayName": thing.name,
        **naming.document_of(thing, "DescribeExperimentResponse"),
        **naming.times(thing),
    }
