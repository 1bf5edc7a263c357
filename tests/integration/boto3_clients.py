"""boto3 clients of a service, and helpers that call them: requests, waits, logs, refusals."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

ROLE = "arn:aws:iam::000000000000:role/ClaryExecutionRole"
GROUP = "/aws/sagemaker/TrainingJobs"
IMAGE = "registry.example/team/bring-your-own:1"


class Clients:
    """boto3 clients, configured only by the variables of `clary env`."""

    def __init__(self, service, **overrides):
        self._options = {
            "endpoint_url": service.environment["AWS_ENDPOINT_URL"],
            "region_name": service.environment["AWS_REGION"],
            "aws_access_key_id": service.environment["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": service.environment["AWS_SECRET_ACCESS_KEY"],
            **overrides,
        }

    def __getattr__(self, name):
        config = Config(retries={"max_attempts": 2}, connect_timeout=5, read_timeout=30)
        client = boto3.client(name.replace("_", "-"), config=config, **self._options)
        setattr(self, name, client)
        return client


def job_request(name, command, **members):
    return {
        "TrainingJobName": name,
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["/bin/bash", "-c"],
            "ContainerArguments": [command],
            "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        },
        "OutputDataConfig": {"S3OutputPath": "s3://clary/out"},
        "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
        **members,
    }


def unique(name):
    return f"{name}-{time.time_ns() % 10**9}"


def wait(aws, name, *, until=("Completed", "Failed", "Stopped"), timeout_s=100):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
        if facts["TrainingJobStatus"] in until or facts["SecondaryStatus"] in until:
            return facts
        time.sleep(0.1)
    raise AssertionError(f"{name} did not reach {until} within {timeout_s} s: {facts}")


def log_of(aws, name):
    streams = aws.logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]
    lines = []
    for stream in streams:
        page = aws.logs.get_log_events(logGroupName=GROUP, logStreamName=stream["logStreamName"], startFromHead=True)
        lines += [event["message"] for event in page["events"]]
    return lines


def refusal(call, **parameters):
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def raw_request(service, request):
    address = urlsplit(service.environment["AWS_ENDPOINT_URL"])
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(request)
        connection.settimeout(10)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
                if b"\r\n\r\n" in answer:
                    break
        except TimeoutError:
            pass
    return answer
