"""A copy of a job's request under another name, with changes. Pure.

Where: `clary rerun` and the console's `Run again` send it as a new CreateTrainingJob.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clary.contract.settings.hyperparameters import JOB_NAME


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Differences of the new job from the old job."""

    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    instance_type: str | None = None
    instance_count: int | None = None


def repeated(request: Mapping[str, Any], *, name: str, changes: Changes) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the request of the new job, and notes for people on the parts shared with the old job.

    Args:
        request: CreateTrainingJob request of the old job, in AWS spelling.
        name: name of the new job.
        changes: changes to the old request.

    Raises: ValueError for another instance type or count of a job with instance groups.
    """
    made: dict[str, Any] = copy.deepcopy(dict(request))
    made["TrainingJobName"] = name
    parameters = dict(made.get("HyperParameters") or {})
    if JOB_NAME in parameters:
        parameters[JOB_NAME] = json.dumps(name)
    is_encoded = any(value.startswith('"') for value in parameters.values())
    for key, value in changes.hyperparameters.items():
        parameters[key] = _encoded(value) if is_encoded else value
    if parameters:
        made["HyperParameters"] = parameters
    if changes.environment:
        made["Environment"] = {**(made.get("Environment") or {}), **changes.environment}
    resources = dict(made.get("ResourceConfig") or {})
    if resources.get("InstanceGroups") and (changes.instance_type or changes.instance_count):
        raise ValueError("the job has instance groups: their types and counts cannot be changed in a repeated job")
    if changes.instance_type:
        resources["InstanceType"] = changes.instance_type
    if changes.instance_count:
        resources["InstanceCount"] = changes.instance_count
    if resources:
        made["ResourceConfig"] = resources
    checkpoints = (made.get("CheckpointConfig") or {}).get("S3Uri")
    notes = (f"it goes on from the checkpoints of the job before, at {checkpoints}",) if checkpoints else ()
    return made, notes


def _encoded(value: str) -> str:
    """Return a value as SDKs send it: JSON, so that numbers stay bare and texts have quotes."""
    try:
        json.loads(value)
    except ValueError:
        return json.dumps(value)
    return value
