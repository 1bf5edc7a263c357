"""From the first to the last handler of SIGTERM on two hosts with two ranks each, and how often each handler ran.

The program has torch_distributed's variables and no torch. Each rank says when its handler ran; it stays for a while
after that, so that a signal which something forwards once more would be counted.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tarfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.bench_start import IMAGE, TIMEOUT_S, _client, _log
from benchmarks.lines import Line, median_and_spread
from benchmarks.service import BenchmarkService, running_service

SCRIPT = """import json, os, signal, time
times = []
signal.signal(signal.SIGTERM, lambda *_: times.append(time.time()))
os.write(1, b"READY\\n")
while not times:
    time.sleep(0.001)
time.sleep(1.0)
os.write(1, f"TIMES {json.dumps(times)}\\n".encode())
"""
NUM_SAMPLES = 10
NUM_RANKS = 4
GOAL_S = 1.0


def run(quick: bool) -> Iterator[Line]:
    """Stop a number of jobs."""
    num_samples = 2 if quick else NUM_SAMPLES
    samples = []
    with running_service() as service:
        _upload(service)
        for index in range(num_samples):
            print(f"job {index + 1} of {num_samples}", file=sys.stderr)
            samples.append(_stop_one(service, f"signals-{index}"))
    spreads = [max(times) - min(times) for times in samples]
    num_handled = [len(times) for times in samples]
    middle, spread = median_and_spread(spreads)
    yield Line(
        case=f"stop,hosts=2,ranks={NUM_RANKS}",
        metric="first_to_last_handler_s",
        unit="s",
        better="lower",
        ours=middle,
        peer_note="SageMaker documents no bound",
        goal=f"< {GOAL_S:g} at most",
        met=max(spreads) < GOAL_S,
        samples=num_samples,
        spread=spread,
        verified=all(count == NUM_RANKS for count in num_handled),
        details={"max_s": max(spreads), "handlers_a_job": statistics.mean(num_handled)},
    )


def _upload(service: BenchmarkService) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("signals.py")
        member.size = len(SCRIPT)
        tar.addfile(member, io.BytesIO(SCRIPT.encode()))
    _client(service, "s3").put_object(Bucket="clary", Key="bench/signals.tar.gz", Body=archive.getvalue())


def _stop_one(service: BenchmarkService, name: str) -> list[float]:
    """Return the times of all handlers' runs."""
    sagemaker = _client(service, "sagemaker")
    sagemaker.create_training_job(
        TrainingJobName=name,
        RoleArn="arn:aws:iam::000000000000:role/ClaryExecutionRole",
        AlgorithmSpecification={"TrainingImage": IMAGE, "TrainingInputMode": "File"},
        HyperParameters={
            "sagemaker_program": '"signals.py"',
            "sagemaker_submit_directory": '"s3://clary/bench/signals.tar.gz"',
            "sagemaker_torch_distributed_enabled": "true",
        },
        OutputDataConfig={"S3OutputPath": "s3://clary/bench"},
        ResourceConfig={"InstanceCount": 2, "InstanceType": "ml.g5.12xlarge", "VolumeSizeInGB": 30},
        StoppingCondition={"MaxRuntimeInSeconds": 600},
    )
    deadline = time.monotonic() + TIMEOUT_S
    while _log(service, name).count("READY") < NUM_RANKS and time.monotonic() < deadline:
        time.sleep(0.2)
    sagemaker.stop_training_job(TrainingJobName=name)
    facts: dict[str, Any] = {"TrainingJobStatus": "InProgress"}
    while facts["TrainingJobStatus"] in ("InProgress", "Stopping") and time.monotonic() < deadline:
        time.sleep(0.2)
        facts = sagemaker.describe_training_job(TrainingJobName=name)
    lines = [line for line in _log(service, name) if line.startswith("TIMES ")]
    if facts["TrainingJobStatus"] != "Stopped" or len(lines) != NUM_RANKS:
        raise SystemExit(f"{name} ended {facts['TrainingJobStatus']} and {len(lines)} ranks spoke")
    return [moment for line in lines for moment in json.loads(line.removeprefix("TIMES "))]
