"""The CreateTrainingJob requests of a trial, and the name of its training job. Pure.

Where: the tuning keeper creates trials with them; the creation of a tuning job validates such requests for each
definition, so that an impossible definition is refused at once. Source: HyperParameterTrainingJobDefinition (AWS API
reference). On AWS, each training job of a tuning job has its own checkpoint prefix, and the hyperparameter
`_tuning_objective_metric`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from clary.control.tuning.tuning_job import TuningJob
from clary.control.tuning.tuning_request import OBJECTIVE_KEY, Definition

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


def trial_requests(
    definition: Definition, parameters: Mapping[str, str], name: str, *, continues: str = ""
) -> tuple[dict[str, Any], ...]:
    """Return the requests for a training job, in order of preference: one for each of InstanceConfigs, else one.

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
    if given.get("CheckpointConfig"):
        place = dict(given["CheckpointConfig"])
        place["S3Uri"] = f"{place['S3Uri'].rstrip('/')}/{continues or name}"
        request["CheckpointConfig"] = place
    kept = {"KeepAlivePeriodInSeconds": KEEP_ALIVE_S} if is_kept_unasked(definition) else {}
    return tuple({**request, "ResourceConfig": {**each, **kept}} for each in resources_of(definition))


def keep_alive_of(definition: Definition) -> int | None:
    """Return the keep-alive period of a definition; None if the request lacks it."""
    value = (definition.definition.get("ResourceConfig") or {}).get("KeepAlivePeriodInSeconds")
    return None if value is None else int(value)


def is_kept_unasked(definition: Definition) -> bool:
    """Whether the service keeps a trial's hosts for the next trial though the definition sets no keep-alive period.

    Hosts on spot capacity are not kept.
    """
    return keep_alive_of(definition) is None and not definition.definition.get("EnableManagedSpotTraining")


def resources_of(definition: Definition) -> tuple[dict[str, Any], ...]:
    """Return the ResourceConfigs that a trial may have, in order of preference; without members that nobody sent.

    There is one for each of InstanceConfigs; without them there is one.
    """
    own = definition.definition.get("HyperParameterTuningResourceConfig") or {}
    least = {"VolumeSizeInGB": DEFAULT_VOLUME_GB, **(definition.definition.get("ResourceConfig") or {})}
    shared = {name: own[name] for name in _RESOURCE_MEMBERS if own.get(name) is not None}
    configs: Sequence[Mapping[str, Any]] = own.get("InstanceConfigs") or ({},)
    return tuple({**least, **shared, **each} for each in configs)
