"""Hyperparameter tuning: wall time of many short trials, and quality of the search.

`trials`: the MNIST example with one epoch a trial, two at a time, beside Ray Tune with Optuna's search (workers that it
keeps) and beside Optuna that starts a process a trial. Ours runs every trial as a training job of the service, with
logs, metrics and a model in the object store, which the peers do not keep.

`functions`: Branin, Hartmann and Ackley functions and mixes with categorical values and whole numbers, ten in all; the
median over seeds of the distance from the least value, and a line that counts the functions on which the goal is met.
Beside Optuna alone with its default sampler, Optuna's Gaussian process, and random search.

`tasks`: trainings of scikit-learn's digits and of a head on MiniLM; the median over seeds of the least loss. Beside the
same.

CLARY_BENCH_TUNING names the one part to run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.jobs import BUCKET, IMAGE, BenchmarkJobs
from benchmarks.lines import ROOT, Line
from benchmarks.service import TRAIN_PYTHON, BenchmarkService, running_service
from benchmarks.tuning.real_data import write_digits
from benchmarks.tuning.tuning_quality import quality
from benchmarks.tuning.tuning_tasks import quality_of_tasks

PARTS = ("trials", "functions", "tasks")
PARALLEL = 2
NUM_TRIALS, NUM_TRIALS_QUICK = 100, 12
LIMIT_S = 900.0
RAY = ROOT / ".venvs/raytune/bin/python"
RAY_NOTE = "Ray Tune is not there: make .venvs/raytune.stamp"
SOURCE = ROOT / "examples/tuning/source"
TERMINAL = ("Completed", "Failed", "Stopped")
NUM_SEEDS, NUM_SEEDS_QUICK = 30, 5


def run(quick: bool) -> Iterator[Line]:
    """Tune the example, then functions, then real trainings."""
    part = os.environ.get("CLARY_BENCH_TUNING", "")
    if part not in ("", *PARTS):
        raise SystemExit(f"CLARY_BENCH_TUNING: expected {' or '.join(PARTS)}, got {part!r}")
    num_seeds = NUM_SEEDS_QUICK if quick else NUM_SEEDS
    if part in ("", "trials"):
        yield from _trials(NUM_TRIALS_QUICK if quick else NUM_TRIALS)
    if part in ("", "functions"):
        yield from quality(num_seeds)
    if part in ("", "tasks"):
        yield from quality_of_tasks(num_seeds)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Outcome of one tuning."""

    wall_s: float
    best: float
    first_lines: tuple[float, ...]  # seconds from the start of a trial to its first line


def _trials(num_trials: int) -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as folder, running_service() as service:
        write_digits(Path(folder))
        print("ours", file=sys.stderr)
        ours = _ours(service, Path(folder), num_trials)
    peers, note = {}, ""
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder))
        print("Optuna with a process a trial", file=sys.stderr)
        peers["Optuna, a process a trial"] = _peer("optuna", Path(sys.executable), folder, num_trials)
        if RAY.exists():
            print("Ray Tune", file=sys.stderr)
            peers["Ray Tune, OptunaSearch"] = _peer("ray", RAY, folder, num_trials)
        else:
            note = RAY_NOTE
    best_peer_s = min(peer.wall_s for peer in peers.values())
    yield Line(
        case=f"mnist,trials={num_trials},parallel={PARALLEL}",
        metric="wall_time",
        unit="s",
        better="lower",
        ours=round(ours.wall_s, 2),
        peers={name: round(peer.wall_s, 2) for name, peer in peers.items()},
        peer_note=note,
        goal="<= 0.5 of the best peer",
        met=ours.wall_s <= 0.5 * best_peer_s,
        samples=num_trials,
        verified=ours.best > 0.5,
        details={
            "best": {"ours": ours.best, **{name: peer.best for name, peer in peers.items()}},
            "s_a_trial": {
                "ours": round(ours.wall_s * PARALLEL / num_trials, 3),
                **{name: round(peer.wall_s * PARALLEL / num_trials, 3) for name, peer in peers.items()},
            },
        },
    )
    optuna_lines = peers["Optuna, a process a trial"].first_lines
    yield Line(
        case=f"mnist,trials={num_trials},parallel={PARALLEL}",
        metric="created_to_training",
        unit="s",
        better="lower",
        ours=round(statistics.median(ours.first_lines), 3),
        peers={},
        peer_note="the process of a peer prints its first line after its only epoch",
        goal="<= 0.3 s",
        met=statistics.median(ours.first_lines) <= 0.3,
        samples=len(ours.first_lines),
        verified=len(ours.first_lines) == num_trials and min(ours.first_lines) > 0,
        details={"process_to_result_of_optuna_s": round(statistics.median(optuna_lines), 3)},
    )


def _ours(service: BenchmarkService, folder: Path, num_trials: int) -> Tuned:
    jobs = BenchmarkJobs(service, "train.py", (SOURCE / "train.py").read_text())
    jobs.s3.upload_file(str(folder / "digits.npz"), BUCKET, "bench/digits/digits.npz")
    request = _request(jobs, "tuning-bench", num_trials)
    began_s = time.monotonic()
    jobs.sagemaker.create_hyper_parameter_tuning_job(**request)
    facts = _wait(jobs, "tuning-bench")
    wall_s = time.monotonic() - began_s
    rows = jobs.sagemaker.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job").paginate(
        HyperParameterTuningJobName="tuning-bench"
    )
    trials = [row for page in rows for row in page["TrainingJobSummaries"]]
    if len(trials) != num_trials or facts["HyperParameterTuningJobStatus"] != "Completed":
        raise SystemExit(f"expected {num_trials} trials, got {len(trials)}: {facts}")
    started = [_training_began(jobs, trial["TrainingJobName"]) - trial["CreationTime"].timestamp() for trial in trials]
    best = facts["BestTrainingJob"]["FinalHyperParameterTuningJobObjectiveMetric"]["Value"]
    return Tuned(wall_s=wall_s, best=best, first_lines=tuple(started))


def _request(jobs: BenchmarkJobs, name: str, num_trials: int) -> dict[str, Any]:
    return {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": {
            "Strategy": "Bayesian",
            "RandomSeed": 1,
            "ResourceLimits": {"MaxNumberOfTrainingJobs": num_trials, "MaxParallelTrainingJobs": PARALLEL},
            "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "accuracy"},
            "ParameterRanges": {
                "ContinuousParameterRanges": [
                    {"Name": "lr", "MinValue": "0.00001", "MaxValue": "0.1", "ScalingType": "Logarithmic"}
                ],
                "IntegerParameterRanges": [
                    {"Name": "batch-size", "MinValue": "16", "MaxValue": "128", "ScalingType": "Linear"},
                    {"Name": "channels", "MinValue": "2", "MaxValue": "16", "ScalingType": "Linear"},
                ],
                "CategoricalParameterRanges": [{"Name": "activation", "Values": ["relu", "gelu", "tanh"]}],
            },
        },
        "TrainingJobDefinition": {
            "StaticHyperParameters": {**jobs.program, "epochs": "1"},
            "AlgorithmSpecification": {
                "TrainingImage": IMAGE,
                "TrainingInputMode": "File",
                "MetricDefinitions": [{"Name": "accuracy", "Regex": "accuracy: ([0-9.]+)"}],
            },
            "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
            "InputDataConfig": [
                {
                    "ChannelName": "training",
                    "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/bench/digits"}},
                }
            ],
            "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/bench"},
            "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 30},
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
        },
    }


def _wait(jobs: BenchmarkJobs, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT_S
    while True:
        facts: dict[str, Any] = jobs.sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
        if facts["HyperParameterTuningJobStatus"] in TERMINAL:
            return facts
        if time.monotonic() > deadline:
            raise SystemExit(f"{name} has not ended within {LIMIT_S:g} s: {facts['TrainingJobStatusCounters']}")
        time.sleep(0.5)


def _training_began(jobs: BenchmarkJobs, name: str) -> float:
    facts = jobs.sagemaker.describe_training_job(TrainingJobName=name)
    began: list[datetime] = [
        row["StartTime"] for row in facts["SecondaryStatusTransitions"] if row["Status"] == "Training"
    ]
    return began[0].timestamp()


def _peer(peer: str, python: Path, folder: str, num_trials: int) -> Tuned:
    order = {
        "peer": peer,
        "num_trials": num_trials,
        "parallel": PARALLEL,
        "folder": folder,
        "python": str(TRAIN_PYTHON),
        "train": str(SOURCE / "train.py"),
    }
    program = str(Path(__file__).with_name("tuning_peers.py"))
    done = subprocess.run(
        [str(python), program, json.dumps(order)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "RAY_AIR_NEW_OUTPUT": "0", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{peer}: exit code {done.returncode}: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    return Tuned(wall_s=told["wall_s"], best=told["best"], first_lines=tuple(told["first_lines"]))
