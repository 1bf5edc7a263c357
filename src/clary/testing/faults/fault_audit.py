"""Evidence of a job's end, gathered through calls that any client can make.

Where: `fault_fleet` calls it when a job has ended. Every call is repeated while the service is down.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from clary.testing.faults.fault_ledger import Ending, Evidence
from clary.testing.faults.fault_plan import JobSpec
from clary.testing.faults.fault_program import BUCKET, MARKER_PREFIX, PROGRAM_KEY, expected_weights
from clary.testing.faults.fault_world import FaultWorld

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
OUTPUT_PREFIX = "fault-out"


def request_of(spec: JobSpec) -> dict[str, Any]:
    """Return the CreateTrainingJob request of a job."""
    arguments = (spec.name, spec.num_lines, spec.work_s, spec.weights_bytes, spec.exit_code)
    return {
        "TrainingJobName": spec.name,
        "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
        "AlgorithmSpecification": {
            "TrainingImage": "registry.example/team/bring-your-own:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-S", "/opt/ml/input/data/program/program.py"],
            "ContainerArguments": [str(argument) for argument in arguments],
        },
        "InputDataConfig": [
            {
                "ChannelName": "program",
                "DataSource": {
                    "S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/{PROGRAM_KEY}"},
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/{OUTPUT_PREFIX}"},
        "ResourceConfig": {"InstanceCount": spec.num_hosts, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }


def ending_of(facts: dict[str, Any]) -> Ending:
    """Return the lasting part of a terminal job's description."""
    ended_at = facts.get("TrainingEndTime")
    return Ending(
        status=facts["TrainingJobStatus"],
        reason=facts.get("FailureReason", ""),
        artifact=facts.get("ModelArtifacts", {}).get("S3ModelArtifacts", ""),
        ended_at=ended_at if isinstance(ended_at, datetime) else None,
    )


def describe(world: FaultWorld, name: str) -> dict[str, Any]:
    """Return a job's description. Raises: ClientError if there is no such job; NoAnswer."""
    facts: dict[str, Any] = world.ask(lambda: world.client("sagemaker").describe_training_job(TrainingJobName=name))
    return facts


def is_set_aside(error: ClientError, name: str) -> bool:
    """Whether an answer says that this job's record cannot be read, and names the command to run."""
    words = str(error)
    return error.response["Error"]["Code"] == "ValidationException" and all(
        word in words for word in (name, "cannot be read", "clary quarantine release")
    )


def list_jobs(world: FaultWorld, prefix: str) -> list[tuple[str, str]]:
    """Return (name, status) of every listed job whose name contains `prefix`."""

    def list_all() -> list[tuple[str, str]]:
        pages = world.client("sagemaker").get_paginator("list_training_jobs")
        return [
            (item["TrainingJobName"], item["TrainingJobStatus"])
            for page in pages.paginate(NameContains=prefix, SortBy="Name", SortOrder="Ascending", MaxResults=100)
            for item in page["TrainingJobSummaries"]
        ]

    return world.ask(list_all)


def gather(world: FaultWorld, spec: JobSpec, ending: Ending) -> Evidence:
    """Return the evidence that the job has left behind.

    Args:
        world: world of the service; every request is repeated while the service is down.
        spec: spec of the job.
        ending: end of the job, from its description.
    Raises: NoAnswer; ClientError for an unexpected refusal.
    """
    has_artifact, trouble, files = _artifact(world, spec, ending)
    return Evidence(
        ending=ending,
        lines={host: _lines(world, spec.name, host) for host in spec.hosts},
        num_starts=_starts(world, spec.name),
        has_artifact=has_artifact,
        artifact_trouble=trouble,
        files=files,
    )


def _lines(world: FaultWorld, name: str, host: str) -> list[str]:
    def read() -> list[str]:
        logs = world.client("logs")
        streams = logs.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{name}/{host}-")
        lines: list[str] = []
        for stream in streams["logStreams"]:
            token: dict[str, str] = {}
            while True:
                page = logs.get_log_events(
                    logGroupName=LOG_GROUP, logStreamName=stream["logStreamName"], startFromHead=True, **token
                )
                lines += [event["message"] for event in page["events"]]
                if page["nextForwardToken"] == token.get("nextToken"):
                    break
                token = {"nextToken": page["nextForwardToken"]}
        return lines

    return world.ask(read)


def _starts(world: FaultWorld, name: str) -> dict[str, int]:
    def count() -> dict[str, int]:
        prefix = f"{MARKER_PREFIX}/{name}/"
        found = world.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        hosts = (item["Key"].split("/")[2] for item in found if item["Key"].endswith("/started"))
        return dict(Counter(hosts))

    return world.ask(count)


def _artifact(world: FaultWorld, spec: JobSpec, ending: Ending) -> tuple[bool, str, dict[str, bool]]:
    """Return whether an artifact exists, its defect if any, and file name -> whether its bytes are right."""
    place = urlsplit(ending.artifact or f"s3://{BUCKET}/{OUTPUT_PREFIX}/{spec.name}/output/model.tar.gz")
    try:
        data: bytes = world.ask(
            lambda: world.client("s3").get_object(Bucket=place.netloc, Key=place.path[1:])["Body"].read()
        )
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
            trouble = "it is absent, and the job is Completed" if ending.status == "Completed" else ""
            return False, trouble, {}
        raise
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            bodies = {item.name.removeprefix("./"): _body(tar, item) for item in tar if item.isfile()}
    except (tarfile.TarError, OSError, EOFError) as error:
        return True, f"{type(error).__name__}: {error}", {}
    files = {
        f"{host}.bin": bodies[f"{host}.bin"] == expected_weights(spec.name, host, spec.weights_bytes)
        for host in spec.hosts
        if f"{host}.bin" in bodies
    }
    return True, "", files


def _body(tar: tarfile.TarFile, item: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(item)
    return file.read() if file is not None else b""
