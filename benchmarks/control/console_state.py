"""A state folder with many jobs and a long log, as the console meets it after months.

Where: `bench_console` fills one before its service starts, for the pages and for the browser.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from clary.contract.agent_protocol import LogBlock
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.training_job import FinalMetric, JobFailure, StatusTransition, TrainingJob
from clary.control.store.log_files.logs import LogStore
from clary.control.store.store import Store

START = datetime(2026, 1, 1, tzinfo=UTC)
LONG_JOB = "long-log-of-two-hosts"  # has the lines, and a metric with many values
NEEDLE = "CUDA out of memory on the way home"  # once in a million lines, near the begin
NUM_HOSTS = 2
LINES_AT_ONCE = 10_000
LINES_OF_A_MOMENT = 10
JOBS_AT_ONCE = 500
NUM_VALUES = 50_000
MODELS = ("resnet", "llama", "bert", "vit", "whisper", "t5")


def fill(home: Path, *, num_jobs: int, num_lines: int) -> None:
    """Write jobs, metrics and log lines into an empty state folder."""
    asyncio.run(_fill(home, num_jobs=num_jobs, num_lines=num_lines))


async def _fill(home: Path, *, num_jobs: int, num_lines: int) -> None:
    store = await Store.open(f"sqlite:///{home / 'clary.db'}")
    logs = LogStore(home / "logs")
    try:
        names = [f"{MODELS[number % len(MODELS)]}-sweep-{number:05}" for number in range(num_jobs - 1)]
        for first in range(0, len(names), JOBS_AT_ONCE):
            some = range(first, min(first + JOBS_AT_ONCE, len(names)))
            await asyncio.gather(*(store.create_job(_job(names[number], number), {"team": "a"}) for number in some))
        streams = tuple(f"{LONG_JOB}/algo-{host + 1}-1" for host in range(NUM_HOSTS))
        await store.create_job(replace(_job(LONG_JOB, num_jobs), log_streams=streams), {})
        await store.add_metrics(LONG_JOB, [_value(number) for number in range(NUM_VALUES)])
        for stream in streams:
            await logs.create_stream(stream, START)
            for first in range(0, num_lines // NUM_HOSTS, LINES_AT_ONCE):
                await logs.append(stream, first, _lines(first))
    finally:
        await logs.close()
        await store.close()


def _job(name: str, number: int) -> TrainingJob:
    chance = random.Random(number)
    created_at = START + timedelta(minutes=number)
    ended_at = created_at + timedelta(seconds=chance.randrange(60, 86_400))
    kind = chance.choices(("Completed", "Failed", "Stopped"), (80, 15, 5))[0]
    failure = None
    if kind == "Failed":
        words = f"ExecuteUserScriptError: rank {chance.randrange(8)}: CUDA error {chance.randrange(100)}"
        failure = JobFailure(fault="algorithm", message=words, host="algo-1", rank=0, exit_code=1)
    request = {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::000000000000:role/training",
        "AlgorithmSpecification": {"TrainingImage": "train:1", "TrainingInputMode": "File"},
        "HyperParameters": {"lr": str(10.0 ** -chance.randrange(6)), "epochs": "3", "batch-size": "64"},
        "Environment": {"MODE": "sweep", "HF_TOKEN": "hf_abcdef"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
        "OutputDataConfig": {"S3OutputPath": "s3://clary/out"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86_400},
    }
    return TrainingJob(
        name=name,
        arn=f"arn:aws:sagemaker:us-west-2:000000000000:training-job/{name}",
        request=request,
        status=TrainingJobStatus(kind),
        secondary_status=SecondaryStatus(kind),
        transitions=(
            StatusTransition(
                status=SecondaryStatus.STARTING, started_at=created_at, ended_at=ended_at, message="Start"
            ),
            StatusTransition(status=SecondaryStatus(kind), started_at=ended_at, ended_at=ended_at, message="Over"),
        ),
        created_at=created_at,
        modified_at=ended_at,
        training_started_at=created_at + timedelta(seconds=5),
        training_ended_at=ended_at,
        attempt=1,
        failure=failure,
        final_metrics=tuple(
            FinalMetric(name=metric, value=chance.random(), at=ended_at) for metric in ("loss", "accuracy", "tokens_s")
        ),
    )


def _value(number: int) -> FinalMetric:
    value = 3 * math.exp(-number / 20_000) + random.Random(number).random() / 10
    return FinalMetric(name="loss", value=value, at=START + timedelta(milliseconds=100 * number), step=number)


def _lines(first: int) -> list[LogBlock]:
    start_ms = int(START.timestamp() * 1000)
    return [
        LogBlock(
            at_ms=start_ms + number,
            text="\n".join(_line(line) for line in range(number, number + LINES_OF_A_MOMENT)),
            rank=number // LINES_OF_A_MOMENT % 8,
        )
        for number in range(first, first + LINES_AT_ONCE, LINES_OF_A_MOMENT)
    ]


def _line(number: int) -> str:
    if number == LINES_AT_ONCE // 2:
        return NEEDLE
    return f"[epoch 3] step {number:09} loss=0.{number % 10_000:04} lr=1e-4 tokens/s={number % 977} gpu=93%"
