"""Rules of CreateTrainingJob that the service model lacks. Pure.

Where: `services.sagemaker.training_jobs` calls `check` after the wire layer has validated the request's shapes and
before the job is stored. Each rule refuses with the code and, if known, the message of the real service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.contract.settings.distribution import refusals
from clary.contract.settings.distribution import warnings as distribution_warnings
from clary.contract.settings.hyperparameters import host_share
from clary.contract.settings.named_places import local_folder_problem, s3_uri_problem
from clary.contract.settings.platform_keys import warnings as key_warnings
from clary.control import instance_choice
from clary.control.instance_choice import settled
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.members.judging import judge
from clary.control.jobs.members.member import Site
from clary.control.jobs.rules import debug_request


def check(request: Mapping[str, Any], site: Site) -> None:
    """Refuse a request with contradicting members, or with a member that no job of this service can have.

    Raises: WireError(ValidationException) with one sentence that says what to change.
    """
    for reason in judge("CreateTrainingJob", request, site).refusals:
        raise WireError("ValidationException", reason)
    _check_members(request)
    _check_instances(request)
    _check_stopping(request)
    _check_channels(request)
    _check_places(request)
    debug_request.check(request)
    job = JobRequest(request)
    try:
        host_share(job.hyperparameters)
    except ValueError as error:
        raise WireError("ValidationException", f"{error}.") from None
    groups = [group.name for group in job.instance_groups]
    for reason in refusals(
        job.hyperparameters,
        environment=job.environment,
        has_command=job.command is not None,
        instance_groups=groups,
    ):
        raise WireError("ValidationException", reason)


def warnings(request: Mapping[str, Any], site: Site) -> tuple[str, ...]:
    """Return warnings about members whose effect may differ from the user's expectation.

    They are shown in the first log lines and in describe.
    """
    job = JobRequest(request)
    found = [
        *distribution_warnings(
            job.hyperparameters,
            num_hosts=job.num_hosts,
            environment=job.environment,
            image=job.image,
            has_command=job.command is not None,
            instance_types=[group.instance_type for group in job.instance_groups],
        ),
        *key_warnings(job.hyperparameters, has_command=job.command is not None),
        *judge("CreateTrainingJob", request, site).warnings,
    ]
    uses_v3_driver = any(channel.name == "sm_drivers" for channel in job.channels)
    quoted = [name for name, value in job.hyperparameters.items() if "'" in value]
    if uses_v3_driver and quoted:
        found.append(
            f"hyperparameter {quoted[0]!r} holds a single quote: the SDK's environment script breaks on it, "
            "so variables that follow it may be missing"
        )
    found.extend(debug_request.warnings(request, job_name=job.name, num_hosts=job.num_hosts))
    return tuple(found)


def _check_members(request: Mapping[str, Any]) -> None:
    for member in ("AlgorithmSpecification", "ResourceConfig", "StoppingCondition"):
        if request.get(member) is None:
            path = member[0].lower() + member[1:]
            raise WireError(
                "ValidationException",
                f"1 validation error detected: Value null at '{path}' failed to satisfy constraint: "
                "Member must not be null",
            )
    specification = request["AlgorithmSpecification"]
    if not specification.get("TrainingImage"):
        raise WireError(
            "ValidationException", "You must specify either an AlgorithmName or a TrainingImage in your request."
        )
    if specification.get("ContainerArguments") and not specification.get("ContainerEntrypoint"):
        raise WireError(
            "ValidationException",
            "ContainerArguments without ContainerEntrypoint: name the program to run in ContainerEntrypoint.",
        )


def _check_instances(request: Mapping[str, Any]) -> None:
    instance_choice.check(request)
    config = settled(request["ResourceConfig"])
    groups = config.get("InstanceGroups") or ()
    if groups and (config.get("InstanceType") or config.get("InstanceCount")):
        raise WireError(
            "ValidationException", "ResourceConfig takes either InstanceGroups or InstanceType and InstanceCount."
        )
    if not groups and not (config.get("InstanceType") and config.get("InstanceCount")):
        raise WireError(
            "ValidationException", "ResourceConfig needs InstanceType and InstanceCount, or InstanceGroups."
        )
    for group in groups:
        if group["InstanceCount"] < 1:
            raise WireError(
                "ValidationException",
                f"Instance group {group['InstanceGroupName']!r} has InstanceCount {group['InstanceCount']}; "
                "each group needs at least 1.",
            )
    names = Counter(group["InstanceGroupName"] for group in groups)
    doubled = [name for name, count in names.items() if count > 1]
    if doubled:
        raise WireError("ValidationException", f"Instance group names must be unique; {doubled[0]!r} occurs twice.")
    known = set(names)
    for channel in JobRequest(request).channels:
        for name in channel.instance_groups:
            if name not in known:
                raise WireError(
                    "ValidationException",
                    f"Channel {channel.name!r} names instance group {name!r}, which ResourceConfig does not have.",
                )


def _check_stopping(request: Mapping[str, Any]) -> None:
    job = JobRequest(request)
    if job.is_spot and (job.max_wait_s is None or job.max_wait_s < job.max_runtime_s):
        got = "absent" if job.max_wait_s is None else f"{job.max_wait_s}"
        raise WireError(
            "ValidationException",
            "Invalid MaxWaitTimeInSeconds. It must be present and be greater than or equal to MaxRuntimeInSeconds "
            f"when EnableManagedSpotTraining is true; MaxWaitTimeInSeconds is {got}, "
            f"MaxRuntimeInSeconds is {job.max_runtime_s}.",
        )
    if job.is_spot or job.max_wait_s is None:
        return
    if job.max_retries is None:
        raise WireError(
            "ValidationException",
            "Invalid MaxWaitTimeInSeconds. It is only supported when EnableManagedSpotTraining is set to true, or with "
            "a RetryStrategy: set one of them, or leave MaxWaitTimeInSeconds out.",
        )
    if job.max_wait_s < job.max_runtime_s:
        raise WireError(
            "ValidationException",
            "Invalid MaxWaitTimeInSeconds. It must be greater than or equal to MaxRuntimeInSeconds with a "
            f"RetryStrategy; MaxWaitTimeInSeconds is {job.max_wait_s}, MaxRuntimeInSeconds is {job.max_runtime_s}.",
        )


def _check_places(request: Mapping[str, Any]) -> None:
    """Refuse addresses and folders that would otherwise fail only at the end of a long job."""
    places = {
        "OutputDataConfig.S3OutputPath": request["OutputDataConfig"].get("S3OutputPath"),
        "CheckpointConfig.S3Uri": (request.get("CheckpointConfig") or {}).get("S3Uri"),
    }
    for member, uri in places.items():
        _check_address(member, uri)
    local_path = JobRequest(request).checkpoint_local_path
    problem = None if local_path is None else local_folder_problem("CheckpointConfig.LocalPath", local_path)
    if problem is not None:
        raise WireError("ValidationException", problem)


def _check_address(member: str, uri: str | None) -> None:
    problem = None if uri is None else s3_uri_problem(uri)
    if problem is not None:
        raise WireError("ValidationException", f"{member} must be s3://bucket/prefix, got {uri!r}: {problem}.")


def _check_channels(request: Mapping[str, Any]) -> None:
    items = request.get("InputDataConfig") or ()
    counts = Counter(item["ChannelName"] for item in items)
    doubled = [name for name, count in counts.items() if count > 1]
    if doubled:
        raise WireError("ValidationException", f"Channel names must be unique; {doubled[0]!r} occurs twice.")
    for item in items:
        source = item.get("DataSource") or {}
        given = [name for name in ("S3DataSource", "FileSystemDataSource", "DatasetSource") if source.get(name)]
        if len(given) != 1 or given[0] == "DatasetSource":
            raise WireError(
                "ValidationException",
                f"Channel {item['ChannelName']!r} needs exactly one of S3DataSource and FileSystemDataSource; "
                f"it has {', '.join(given) or 'none'}.",
            )
        if item["ChannelName"] in (".", ".."):
            raise WireError("ValidationException", f"{item['ChannelName']!r} is not a valid channel name.")
        if "S3DataSource" in given:
            _check_address(f"Channel {item['ChannelName']!r}: S3Uri", source["S3DataSource"]["S3Uri"])
