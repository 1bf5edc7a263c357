"""A tuning job whose service is killed again and again: trials that are lost, doubled or proposed twice.

As many trials as the space has points, drawn by chance: each point has one trial. A trial prints its point and a value
that only this point has. The service is killed with SIGKILL at random moments, one in each part of the trials, and
started again; hosts and programs live on meanwhile.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.jobs import BUCKET, BenchmarkJobs
from benchmarks.lines import Line
from benchmarks.service import BenchmarkService, running_service

NAME = "kills"
AXES = ("row", "column", "layer")
Sizes = tuple[int, int, int]
SIZES: Sizes = (10, 10, 10)  # values of each axis; a range has at most 30
SIZES_QUICK: Sizes = (2, 4, 5)
KILLS, KILLS_QUICK = 20, 4
PARALLEL = 4
MOST_DELAY_S = 2.5  # of a kill, after the moment at which its part of the trials has begun
LIMIT_S = 7200.0
POLL_S = 0.5
SEED = 7
# Hosts so small that as many fit as trials run at a time, and the interpreter of the tool, for the program imports
# nothing: no torch gets ready for the next trial.
SETTINGS = """memory_per_host_bytes = 1073741824
[images]
"bench:*" = "bench"
[environments]
bench = "{python}"
"""
TERMINAL = ("Completed", "Failed", "Stopped")
PROGRAM = """
import argparse
parser = argparse.ArgumentParser()
for name in ("row", "column", "layer"):
    parser.add_argument("--" + name, type=int)
options, _ = parser.parse_known_args()
print(f"ran {options.row} {options.column} {options.layer}", flush=True)
print(f"loss={(options.row * 100 + options.column) * 100 + options.layer}", flush=True)
"""


def run(quick: bool) -> Iterator[Line]:
    """Tune, kill and count."""
    sizes = SIZES_QUICK if quick else SIZES
    num_trials = math.prod(sizes)
    num_kills = KILLS_QUICK if quick else KILLS
    with running_service(SETTINGS.format(python=sys.executable)) as service:
        jobs = BenchmarkJobs(service, "train.py", PROGRAM)
        began_s = time.monotonic()
        jobs.sagemaker.create_hyper_parameter_tuning_job(**_request(jobs, sizes))
        kill_again_and_again(service, jobs, num_kills=num_kills, num_trials=num_trials)
        facts = _wait_until_ended(jobs, num_trials)
        wall_s = time.monotonic() - began_s
        findings = count(_seen(jobs), sizes)
    status = facts["HyperParameterTuningJobStatus"]
    case = f"trials={num_trials},kills={num_kills},parallel={PARALLEL}"
    details = {"status": status, "reason": facts.get("FailureReason", ""), "wall_s": round(wall_s, 1), "seed": SEED}
    for metric, names in (("lost", findings.lost), ("doubled", findings.doubled)):
        yield Line(
            case=case,
            metric=f"trials_{metric}",
            unit="",
            better="lower",
            ours=len(names),
            bound=0,
            bound_note="nothing",
            goal="0",
            met=not names,
            samples=num_trials,
            verified=status == "Completed",
            details={**details, "examples": names[:5]},
        )
    yield Line(
        case=case,
        metric="wall_time",
        unit="s",
        better="lower",
        ours=round(wall_s, 1),
        samples=num_trials,
        verified=status == "Completed" and not findings.lost,
        details={"s_of_one_of_the_places_a_trial": round(wall_s * PARALLEL / num_trials, 3)},
    )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Answers of the service about a tuning job at its end."""

    trials: Sequence[Mapping[str, Any]]  # summaries of the tuning job
    training_jobs: Sequence[str]  # names of all that there are
    logs: Mapping[str, Sequence[str]]  # training job -> lines of its log


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Lost and doubled trials of a service, in words."""

    lost: Sequence[str]
    doubled: Sequence[str]


def kill_again_and_again(service: BenchmarkService, jobs: BenchmarkJobs, *, num_kills: int, num_trials: int) -> None:
    """Kill the service and start it again, each time after a further part of the trials and a random delay.

    Raises: SystemExit if the trials do not go on within LIMIT_S.
    """
    chance = random.Random(SEED)
    for kill in range(num_kills):
        _wait_for_trials(jobs, num_trials * kill // (num_kills + 1))
        time.sleep(chance.uniform(0, MOST_DELAY_S))
        print(f"kill {kill + 1} of {num_kills}", file=sys.stderr)
        record = json.loads((service.home / "run" / "service.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)
        service.start_again()


def count(seen: Seen, sizes: Sizes) -> Findings:
    """Return the trials that were lost or doubled.

    Lost is a point without a trial, a trial that has not completed with the value of its point, a training job that no
    trial knows, and a log without the program's line. Doubled is a point of two trials, a number of two, and a program
    that ran twice.

    Args:
        seen: at the end.
        sizes: of the space.
    """
    lost, doubled = [], []
    points: Counter[tuple[int, ...]] = Counter()
    for trial in seen.trials:
        name = trial["TrainingJobName"]
        x, y, z = point = tuple(int(trial["TunedHyperParameters"][axis]) for axis in AXES)
        value = trial.get("FinalHyperParameterTuningJobObjectiveMetric", {}).get("Value")
        points[point] += 1
        expected = ("Completed", (x * 100 + y) * 100 + z)
        if (trial["TrainingJobStatus"], value) != expected:
            got = (trial["TrainingJobStatus"], value, trial.get("FailureReason", ""))
            lost.append(f"{name}: expected {expected}, got {got}")
        ran = [line for line in seen.logs.get(name, ()) if line.startswith("ran ")]
        if f"ran {x} {y} {z}" not in ran:
            lost.append(f"{name}: expected a line of its program, got {ran}")
        elif len(ran) > 1:
            doubled.append(f"{name}: ran {len(ran)} times")
    every = itertools.product(*map(range, sizes))
    lost += [f"point {point}: no trial" for point in every if point not in points]
    known = [trial["TrainingJobName"] for trial in seen.trials]
    lost += [f"{name}: a training job that is no trial" for name in seen.training_jobs if name not in set(known)]
    numbers = Counter(int(name.split("-")[1]) for name in known)
    doubled += [f"number {number}: {times} trials" for number, times in numbers.items() if times > 1]
    doubled += [f"point {point}: {times} trials" for point, times in points.items() if times > 1]
    return Findings(lost=lost, doubled=doubled)


def _wait_for_trials(jobs: BenchmarkJobs, num_ended: int) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while (ended := (facts := _describe(jobs))["ObjectiveStatusCounters"]["Succeeded"]) < num_ended:
        is_over = facts["HyperParameterTuningJobStatus"] in TERMINAL
        if is_over or time.monotonic() > deadline_s:
            raise SystemExit(f"expected {num_ended} trials to have ended within {LIMIT_S:g} s, got {ended}: {facts}")
        time.sleep(POLL_S)


def _wait_until_ended(jobs: BenchmarkJobs, num_trials: int) -> dict[str, Any]:
    deadline_s = time.monotonic() + LIMIT_S
    while (facts := _describe(jobs))["HyperParameterTuningJobStatus"] not in TERMINAL:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{num_trials} trials have not ended within {LIMIT_S:g} s: {facts}")
        time.sleep(POLL_S)
    return facts


def _describe(jobs: BenchmarkJobs) -> dict[str, Any]:
    facts: dict[str, Any] = jobs.sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=NAME)
    return facts


def _seen(jobs: BenchmarkJobs) -> Seen:
    pages = jobs.sagemaker.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job").paginate(
        HyperParameterTuningJobName=NAME
    )
    trials = [row for page in pages for row in page["TrainingJobSummaries"]]
    pages = jobs.sagemaker.get_paginator("list_training_jobs").paginate(NameContains=NAME)
    names = [row["TrainingJobName"] for page in pages for row in page["TrainingJobSummaries"]]
    return Seen(trials=trials, training_jobs=names, logs={name: jobs.log(name) for name in names})


def _request(jobs: BenchmarkJobs, sizes: Sizes) -> dict[str, Any]:
    return {
        "HyperParameterTuningJobName": NAME,
        "HyperParameterTuningJobConfig": {
            "Strategy": "Random",
            "RandomSeed": SEED,
            "ResourceLimits": {"MaxNumberOfTrainingJobs": math.prod(sizes), "MaxParallelTrainingJobs": PARALLEL},
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ParameterRanges": {
                "CategoricalParameterRanges": [
                    {"Name": name, "Values": [str(place) for place in range(length)]}
                    for name, length in zip(AXES, sizes, strict=True)
                ]
            },
        },
        "TrainingJobDefinition": {
            "StaticHyperParameters": jobs.program,
            "AlgorithmSpecification": {
                "TrainingImage": "bench:1",
                "TrainingInputMode": "File",
                "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
            },
            "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
            "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/bench"},
            "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 30},
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
        },
    }
