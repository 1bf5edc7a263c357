"""Makes the requests of a job's twin and rehearsal, with their own names and S3 prefixes. Pure.

Where: `clary rehearse`. Neither the twin nor the rehearsal may write to the job's own prefixes: outputs, checkpoints,
tensors and profiles are written below a prefix of the rehearsal, and paths in hyperparameters, environment,
ContainerEntrypoint and ContainerArguments that name one of the job's prefixes are redirected there, too.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clary.contract.rehearsals import DISKS_VARIABLE, REHEARSAL_VARIABLE
from clary.contract.settings.hyperparameters import JOB_NAME, SUBMIT_DIRECTORY
from clary.control.instance_choice import settled

MAX_NAME = 63  # CreateTrainingJob, TrainingJobName
MAX_RETRIES = 30  # RetryStrategy.MaximumRetryAttempts
SPARE_RETRIES = 2
EXTRA_WAIT_S = 3600  # MaxWaitTimeInSeconds minus MaxRuntimeInSeconds
PREFIX = "clary-rehearsals"
_OTHER_PLACES = (  # members with S3 paths that a job writes to
    ("TensorBoardOutputConfig", "S3OutputPath", "tensorboard"),
    ("DebugHookConfig", "S3OutputPath", "tensors"),
    ("ProfilerConfig", "S3OutputPath", "profiler"),
)
_COMMANDS = ("ContainerEntrypoint", "ContainerArguments")  # members of AlgorithmSpecification, lists of words


@dataclass(frozen=True, kw_only=True)
class RehearsalRequests:
    """The two requests of a rehearsal."""

    twin: dict[str, Any]
    rehearsal: dict[str, Any]
    notes: tuple[str, ...]  # differences from the request, for users


def rehearsal_requests(
    request: Mapping[str, Any], *, suffix: str, num_faults: int, needs_spot: bool, disks: str = ""
) -> RehearsalRequests:
    """Make the requests.

    Args:
        request: CreateTrainingJob in AWS spelling.
        suffix: last part of both names and of their prefix, so that rehearsals do not collide.
        num_faults: number of faults; the rehearsal may be retried as often, and SPARE_RETRIES times more.
        needs_spot: whether a fault reclaims spot capacity.
        disks: `contract.rehearsals.disks_value` for hosts of both jobs that get private disks; empty without disks.
    """
    notes: list[str] = []
    base = str(request["TrainingJobName"])
    twin_name, rehearsal_name = rehearsal_names(base, suffix)
    twin = _moved(request, name=twin_name, notes=notes)
    rehearsal = _moved(request, name=rehearsal_name, notes=[])
    for made in (twin, rehearsal):
        made["Environment"].pop(DISKS_VARIABLE, None)  # left by an earlier rehearsal
        if disks:
            made["Environment"][DISKS_VARIABLE] = disks
    strategy = rehearsal.get("RetryStrategy") or {}
    wanted = max(int(strategy.get("MaximumRetryAttempts", 0)), num_faults + SPARE_RETRIES)
    rehearsal["RetryStrategy"] = {"MaximumRetryAttempts": min(wanted, MAX_RETRIES)}
    if needs_spot:
        rehearsal["EnableManagedSpotTraining"] = True
        stopping = dict(rehearsal.get("StoppingCondition") or {})
        runtime_s = int(stopping.setdefault("MaxRuntimeInSeconds", 86400))
        wait_s = int(stopping.get("MaxWaitTimeInSeconds", 0))
        rehearsal["StoppingCondition"] = {**stopping, "MaxWaitTimeInSeconds": max(wait_s, runtime_s + EXTRA_WAIT_S)}
        if not request.get("EnableManagedSpotTraining"):
            notes.append("the rehearsal runs on spot capacity, so that it can be reclaimed")
    if not (request.get("CheckpointConfig") or {}).get("S3Uri"):
        notes.append("the request has no CheckpointConfig.S3Uri: nothing is restored after a fault")
    return RehearsalRequests(twin=twin, rehearsal=rehearsal, notes=tuple(notes))


def rehearsal_names(base: str, suffix: str) -> tuple[str, str]:
    """Return the names of a job's twin and its rehearsal."""
    return _name(base, "twin", suffix), _name(base, "rehearsal", suffix)


def host_names(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that the job's hosts will have."""
    config = settled(request.get("ResourceConfig") or {})
    groups = config.get("InstanceGroups")
    number = sum(int(group["InstanceCount"]) for group in groups) if groups else int(config.get("InstanceCount", 1))
    return tuple(f"algo-{index}" for index in range(1, number + 1))


def _name(base: str, kind: str, suffix: str) -> str:
    ending = f"-{kind}-{suffix}"
    return base[: MAX_NAME - len(ending)].rstrip("-") + ending


def _moved(request: Mapping[str, Any], *, name: str, notes: list[str]) -> dict[str, Any]:
    """Return the request under another name, with its own S3 prefixes."""
    moved: dict[str, Any] = copy.deepcopy(dict(request))
    old_name = str(moved["TrainingJobName"])
    moved["TrainingJobName"] = name
    moved.pop("Tags", None)
    output = str((moved.get("OutputDataConfig") or {}).get("S3OutputPath", ""))
    place = f"{output.rstrip('/')}/{PREFIX}/{name}"
    places: dict[str, str] = {}  # prefix of the job -> prefix of the rehearsal
    moved["OutputDataConfig"] = {**(moved.get("OutputDataConfig") or {}), "S3OutputPath": place}
    checkpoints = moved.get("CheckpointConfig")
    if checkpoints and checkpoints.get("S3Uri"):
        places[str(checkpoints["S3Uri"])] = f"{place}/checkpoints"
        checkpoints["S3Uri"] = f"{place}/checkpoints"
    for member, key, folder in _OTHER_PLACES:
        if (moved.get(member) or {}).get(key):
            places[str(moved[member][key])] = f"{place}/{folder}"
            moved[member][key] = f"{place}/{folder}"
    if output:
        places[f"{output.rstrip('/')}/{old_name}"] = f"{place}/{name}"
    resources = dict(settled(moved.get("ResourceConfig") or {}))
    moved["ResourceConfig"] = resources
    resources.pop("KeepAlivePeriodInSeconds", None)  # a killed host must not serve another job
    parameters = moved.get("HyperParameters") or {}
    for key in parameters:
        if key == JOB_NAME:
            parameters[key] = json.dumps(name)
        elif key != SUBMIT_DIRECTORY:
            parameters[key] = _elsewhere(key, str(parameters[key]), places, notes)
    environment = {
        key: _elsewhere(key, str(value), places, notes) for key, value in (moved.get("Environment") or {}).items()
    }
    moved["Environment"] = {**environment, REHEARSAL_VARIABLE: "1"}
    algorithm = moved.get("AlgorithmSpecification") or {}
    for key in _COMMANDS:
        if algorithm.get(key):
            algorithm[key] = [_elsewhere(key, str(word), places, notes) for word in algorithm[key]]
    return moved


def _elsewhere(key: str, value: str, places: Mapping[str, str], notes: list[str]) -> str:
    """Return a value, with each path at or below one of the job's prefixes moved to the rehearsal's."""
    new_of = {old.rstrip("/"): new for old, new in places.items()}
    if not new_of:
        return value
    olds = "|".join(re.escape(old) for old in sorted(new_of, key=len, reverse=True))
    moved = re.sub(rf"(?:{olds})(?![\w.-])", lambda found: new_of[found[0]], value)
    note = f"{key} names a place of the job and names the rehearsal's instead"
    if moved != value and note not in notes:
        notes.append(note)
    return moved
