"""The load program of bench_api: one boto3 client that creates or describes jobs as fast as it can."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import boto3
from botocore.config import Config

NUM_KEPT = 1000


def request(name: str, command: str = "true") -> dict[str, Any]:
    """Return a CreateTrainingJob request of usual size."""
    return {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
        "AlgorithmSpecification": {
            "TrainingImage": "registry.example/bench:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["bash", "-c", command],
        },
        "HyperParameters": {f"parameter-{index}": str(index) for index in range(10)},
        "OutputDataConfig": {"S3OutputPath": "s3://clary/bench"},
        "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "Environment": {"A": "b"},
        "Tags": [{"Key": "bench", "Value": "api"}],
    }


def main() -> None:
    """Run one act of the command line and print its measurements as JSON."""
    act, amount, index = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    config = Config(retries={"max_attempts": 1}, parameter_validation=False)
    client = boto3.client("sagemaker", config=config)
    latencies: list[float] = []
    is_right = True
    started_at = time.monotonic()
    if act == "block":
        client.create_training_job(**request("blocker", "sleep 600"))
        deadline = time.monotonic() + 60
        while client.describe_training_job(TrainingJobName="blocker")["SecondaryStatus"] == "Starting":
            if time.monotonic() > deadline:
                raise SystemExit("the job that holds the hosts did not start within 60 s")
            time.sleep(0.1)
    elif act in ("create", "fill"):
        count = 0
        while (time.monotonic() - started_at < amount) if act == "create" else (count < amount):
            name = f"{act}-{index}-{count}"
            before = time.monotonic()
            answer = client.create_training_job(**request(name))
            latencies.append((time.monotonic() - before) * 1000)
            is_right = is_right and answer["TrainingJobArn"].endswith(name)
            count += 1
    else:
        for count in range(int(amount)):
            name = f"create-0-{count % NUM_KEPT % 100}"
            before = time.monotonic()
            answer = client.describe_training_job(TrainingJobName=name)
            latencies.append((time.monotonic() - before) * 1000)
            is_right = is_right and answer["TrainingJobName"] == name
    seconds = time.monotonic() - started_at
    print(json.dumps({"accepted": len(latencies), "seconds": seconds, "latencies_ms": latencies, "is_right": is_right}))


if __name__ == "__main__":
    main()
