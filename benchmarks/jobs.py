"""Jobs in script mode as the benchmarks submit them, and their outcomes, by boto3."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.service import BenchmarkService

IMAGE = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-gpu-py312"
INSTANCE_TYPE = "ml.g5.12xlarge"
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
BUCKET = "clary"
TERMINAL = ("Completed", "Failed", "Stopped")
TIMEOUT_S = 120.0
POLL_S = 0.2


class BenchmarkJobs:
    """Submits one program again and again to a service, with two hosts and torch_distributed."""

    def __init__(self, service: BenchmarkService, program: str, script: str) -> None:
        environment = service.environment
        config = Config(retries={"total_max_attempts": 3, "mode": "standard"}, connect_timeout=5, read_timeout=60)
        options: dict[str, Any] = {
            "endpoint_url": environment["AWS_ENDPOINT_URL"],
            "region_name": environment["AWS_REGION"],
            "aws_access_key_id": environment["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": environment["AWS_SECRET_ACCESS_KEY"],
            "config": config,
        }
        self.sagemaker = boto3.client("sagemaker", **options)
        self.logs = boto3.client("logs", **options)
        self._program = program
        self._key = f"bench/{hashlib.sha256(script.encode()).hexdigest()[:16]}.tar.gz"
        self.s3 = boto3.client("s3", **options)
        self.s3.put_object(Bucket=BUCKET, Key=self._key, Body=_archive(program, script))

    def create(self, name: str, *, instance_type: str = INSTANCE_TYPE, num_hosts: int = 2, **members: Any) -> None:
        """Submit a job; returns when it is accepted. Members are added to the request, or stand in place of its own."""
        request = {
            "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
            "AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File"},
            "HyperParameters": {**self.program, "sagemaker_torch_distributed_enabled": "true"},
            "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/bench"},
            "ResourceConfig": {"InstanceCount": num_hosts, "InstanceType": instance_type, "VolumeSizeInGB": 30},
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
        }
        self.sagemaker.create_training_job(TrainingJobName=name, **request | members)

    @property
    def program(self) -> dict[str, str]:
        """Return the hyperparameters that name the program and its code."""
        return {
            "sagemaker_program": json.dumps(self._program),
            "sagemaker_submit_directory": json.dumps(f"s3://{BUCKET}/{self._key}"),
        }

    def wait(self, name: str, *, status: str) -> dict[str, Any]:
        """Return the description of a job at its end; exits if its status is another than `status`."""
        deadline = time.monotonic() + TIMEOUT_S
        facts: dict[str, Any] = self.sagemaker.describe_training_job(TrainingJobName=name)
        while facts["TrainingJobStatus"] not in TERMINAL and time.monotonic() < deadline:
            time.sleep(POLL_S)
            facts = self.sagemaker.describe_training_job(TrainingJobName=name)
        if facts["TrainingJobStatus"] != status:
            raise SystemExit(
                f"{name}: expected {status}, got {facts['TrainingJobStatus']}: {facts.get('FailureReason')}"
            )
        return facts

    def wait_for_lines(self, name: str, is_enough: Callable[[list[str]], bool]) -> list[str]:
        """Return a job's log once it satisfies `is_enough`; exits if it does not within TIMEOUT_S."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_enough(lines := self.log(name)):
            if time.monotonic() > deadline:
                raise SystemExit(f"{name}: {TIMEOUT_S:g} s were not enough for the lines that are expected: {lines}")
            time.sleep(POLL_S)
        return lines

    def log(self, name: str) -> list[str]:
        """Return the first page of each host's log."""
        answer = self.logs.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{name}/")
        lines: list[str] = []
        for stream in answer["logStreams"]:
            page = self.logs.get_log_events(
                logGroupName=LOG_GROUP, logStreamName=stream["logStreamName"], startFromHead=True
            )
            lines += [event["message"] for event in page["events"]]
        return lines


def _archive(program: str, script: str) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo(program)
        member.size = len(script)
        tar.addfile(member, io.BytesIO(script.encode()))
    return archive.getvalue()
