"""The CreateTrainingJob request of a trial, and the name of its training job. Pure.

Where: the tuning keeper creates trials with it; the creation of a tuning job validates one such request for each
definition, so that an impossible definition is refused at once. Source: HyperParameterTrainingJobDefinition (AWS API
reference). On AWS, each training job of a tuning job has its own checkpoint prefix, and the hyperparameter
`_tuning_objective_metric`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from clary.control.tuning.tuning_job import TuningJob
from clary.control.tuning.tuning_request import Definition

OBJECTIVE_KEY = "_tuning_objective_metric"
KEEP_ALIVE_S = 120  # time for which a trial's hosts wait for the next trial, unless the definition sets it
_NUM_DIGITS = 8  # digits of the digest in a name
_SAME_MEMBERS = (
    "RoleArn",
    "InputDataConfig",
    "VpcConfig",
    "OutputDataConfig",
    "StoppingCondition",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
    "EnableManagedSpotTraining",
    "RetryStrategy",
    "Environment",
)
_RESOURCE_MEMBERS = ("InstanceType", "InstanceCount", "VolumeSizeInGB", "VolumeKmsKeyId")
DEFAULT_VOLUME_GB = 30


def trial_name(job: TuningJob, number: int) -> str:
    """Return the name of a trial's training job; the same arguments give the same name.

    Args:
        job: tuning job of the trial.
        number: number of the trial, from 1.
    """
    identity = f"{job.arn} {job.created_at.isoformat()} {number}"
    return f"{job.name}-{number:03d}-{hashlib.sha256(identity.encode()).hexdigest()[:_NUM_DIGITS]}"


def trial_request(
    definition: Definition, parameters: Mapping[str, str], name: str, *, continues: str = ""
) -> dict[str, Any]:
    """Return the request for a training job.

    Args:
        definition: definition of the training job.
        parameters: tuned hyperparameters as text.
        name: name of the training job.
        continues: name of the training job from whose checkpoints the new one starts, and whose checkpoint prefix it
            uses; empty for a new configuration.
    """
    given = definition.definition
    request = {member: given[member] for member in _SAME_MEMBERS if given.get(member) is not None}
    request["TrainingJobName"] = name
    specification = dict(given["AlgorithmSpecification"])
    request["AlgorithmSpecification"] = specification
    static = given.get("StaticHyperParameters") or {}
    request["HyperParameters"] = {**static, **parameters, OBJECTIVE_KEY: definition.objective.metric}
    request["ResourceConfig"] = resources_of(definition)
    if given.get("CheckpointConfig"):
        place = dict(given["CheckpointConfig"])
        place["S3Uri"] = f"{place['S3Uri'].rstrip('/')}/{continues or name}"
        request["CheckpointConfig"] = place
    return request


def keep_alive_of(definition: Definition) -> int | None:
    """Return the keep-alive period of a definition; None if the request lacks it."""
    value = (definition.definition.get("ResourceConfig") or {}).get("KeepAlivePeriodInSeconds")
    return None if value is None else int(value)


def resources_of(definition: Definition) -> dict[str, Any]:
    """Return the ResourceConfig of a trial; except on spot capacity, its hosts are kept for the next trial."""
    given = definition.definition
    found = dict(given.get("ResourceConfig") or {})
    own = given.get("HyperParameterTuningResourceConfig") or {}
    if own.get("InstanceConfigs"):
        first = own["InstanceConfigs"][0]
        if len(own["InstanceConfigs"]) == 1:
            found |= {name: first[name] for name in ("InstanceType", "InstanceCount", "VolumeSizeInGB")}
        else:
            found["VolumeSizeInGB"] = max(one["VolumeSizeInGB"] for one in own["InstanceConfigs"])
            found["InstancePreferences"] = [
                {"InstanceType": one["InstanceType"], "InstanceCount": one["InstanceCount"]}
                for one in own["InstanceConfigs"]
            ]
    elif own:
        found |= {name: own[name] for name in _RESOURCE_MEMBERS if own.get(name) is not None}
    if own.get("VolumeKmsKeyId"):
        found["VolumeKmsKeyId"] = own["VolumeKmsKeyId"]
    found.setdefault("VolumeSizeInGB", DEFAULT_VOLUME_GB)
    if not given.get("EnableManagedSpotTraining"):
        found.setdefault("KeepAlivePeriodInSeconds", KEEP_ALIVE_S)
    return found
