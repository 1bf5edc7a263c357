"""Hyperparameter tuning: wall time of many short trials, quality of the search, and epochs that Hyperband saves.

`trials`: the MNIST example with one epoch a trial, two at a time, beside Ray Tune with Optuna's search (workers that it
keeps) and beside Optuna that starts a process a trial. Ours runs every trial as a training job of the service, with
logs, metrics and a model in the object store, which the peers do not keep.

`quality`: Branin, Hartmann and Ackley functions and mixes with categorical values; the median over seeds of the
distance from the least value. Beside Optuna alone with its default sampler, and random search.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.jobs import BUCKET, IMAGE, BenchmarkJobs
from benchmarks.lines import ROOT, Line
from benchmarks.service import TRAIN_PYTHON, BenchmarkService, running_service
from clary.control.tuning.parameter_space import Categorical, Continuous, Scaling, Space
from clary.control.tuning.search import Observation, Question, propose

PARALLEL = 2
NUM_TRIALS, NUM_TRIALS_QUICK = 100, 12
LIMIT_S = 900.0
RAY = ROOT / ".venvs/raytune/bin/python"
RAY_NOTE = "Ray Tune is not there: make .venvs/raytune.stamp"
SOURCE = ROOT / "examples/tuning/source"
TERMINAL = ("Completed", "Failed", "Stopped")
NUM_SEEDS, NUM_SEEDS_QUICK, NUM_POINTS = 30, 5, 50


def run(quick: bool) -> Iterator[Line]:
    """Tune the example, then functions."""
    yield from _trials(NUM_TRIALS_QUICK if quick else NUM_TRIALS)
    yield from _quality(NUM_SEEDS_QUICK if quick else NUM_SEEDS)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Outcome of one tuning."""

    wall_s: float
    best: float
    first_lines: tuple[float, ...]  # seconds from the start of a trial to its first line


def _trials(num_trials: int) -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as folder, running_service() as service:
        _write_digits(Path(folder))
        print("ours", file=sys.stderr)
        ours = _ours(service, Path(folder), num_trials)
    peers, note = {}, ""
    with tempfile.TemporaryDirectory() as folder:
        _write_digits(Path(folder))
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


def _write_digits(folder: Path) -> None:
    """Write the example's data with the interpreter that has it."""
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import digits; digits.write_digits({str(folder)!r})"
    )
    subprocess.run([str(ROOT / ".venvs/sdk2/bin/python"), "-c", code], check=True, timeout=60)


# Quality


def _linear(name: str, least: float, greatest: float) -> Continuous:
    return Continuous(name=name, least=least, greatest=greatest, scaling=Scaling.LINEAR)


def _branin(p: Mapping[str, str]) -> float:
    x, y = float(p["x"]), float(p["y"])
    inner = y - 5.1 * x * x / (4 * math.pi**2) + 5 * x / math.pi - 6
    return inner**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


_HARTMANN_A = (
    (10, 3, 17, 3.5, 1.7, 8),
    (0.05, 10, 17, 0.1, 8, 14),
    (3, 3.5, 1.7, 10, 17, 8),
    (17, 8, 0.05, 10, 0.1, 14),
)
_HARTMANN_P = (
    (1312, 1696, 5569, 124, 8283, 5886),
    (2329, 4135, 8307, 3736, 1004, 9991),
    (2348, 1451, 3522, 2883, 3047, 6650),
    (4047, 8828, 8732, 5743, 1091, 381),
)


def _hartmann6(p: Mapping[str, str]) -> float:
    x = [float(p[f"x{index}"]) for index in range(6)]
    total = 0.0
    for weight, a, q in zip((1.0, 1.2, 3.0, 3.2), _HARTMANN_A, _HARTMANN_P, strict=True):
        total += weight * math.exp(-sum(a[j] * (x[j] - q[j] / 10_000) ** 2 for j in range(6)))
    return -total


def _ackley(p: Mapping[str, str], dimensions: int) -> float:
    x = [float(p[f"x{index}"]) for index in range(dimensions)]
    squares = sum(value * value for value in x) / dimensions
    waves = sum(math.cos(2 * math.pi * value) for value in x) / dimensions
    return -20 * math.exp(-0.2 * math.sqrt(squares)) - math.exp(waves) + 20 + math.e


def _rosenbrock(p: Mapping[str, str]) -> float:
    x, y = float(p["x"]), float(p["y"])
    return (1 - x) ** 2 + 100 * (y - x * x) ** 2


def _mixed(p: Mapping[str, str]) -> float:
    """Branin with a category that shifts it, of which one in five is right."""
    return _branin(p) + 8 * abs(int(p["kind"]) - 3)


def _mixed_ackley(p: Mapping[str, str]) -> float:
    return _ackley(p, 3) + {"a": 0.0, "b": 1.0, "c": 2.0}[p["kind"]] + {"on": 0.0, "off": 0.7}[p["switch"]]


def _learning(p: Mapping[str, str]) -> float:
    """A bowl in the logarithm of a rate, as learning rates are."""
    return (math.log10(float(p["lr"])) + 2.5) ** 2 + (math.log10(float(p["decay"])) + 4) ** 2 * 0.3


FUNCTIONS: Mapping[str, tuple[Space, Callable[[Mapping[str, str]], float], float]] = {
    "branin": ((_linear("x", -5, 10), _linear("y", 0, 15)), _branin, 0.397887),
    "hartmann6": (tuple(_linear(f"x{index}", 0, 1) for index in range(6)), _hartmann6, -3.32237),
    "ackley2": (tuple(_linear(f"x{index}", -5, 5) for index in range(2)), lambda p: _ackley(p, 2), 0.0),
    "ackley5": (tuple(_linear(f"x{index}", -5, 5) for index in range(5)), lambda p: _ackley(p, 5), 0.0),
    "rosenbrock": ((_linear("x", -2, 2), _linear("y", -1, 3)), _rosenbrock, 0.0),
    "mixed-branin": (
        (_linear("x", -5, 10), _linear("y", 0, 15), Categorical(name="kind", values=("1", "2", "3", "4", "5"))),
        _mixed,
        0.397887,
    ),
    "mixed-ackley": (
        (
            *(_linear(f"x{index}", -5, 5) for index in range(3)),
            Categorical(name="kind", values=("a", "b", "c")),
            Categorical(name="switch", values=("on", "off")),
        ),
        _mixed_ackley,
        0.0,
    ),
    "learning": (
        (
            Continuous(name="lr", least=1e-5, greatest=1.0, scaling=Scaling.LOGARITHMIC),
            Continuous(name="decay", least=1e-7, greatest=1e-1, scaling=Scaling.LOGARITHMIC),
        ),
        _learning,
        0.0,
    ),
}


def _quality(num_seeds: int) -> Iterator[Line]:
    for name, (space, function, least) in FUNCTIONS.items():
        ours = [_best(space, function, "Bayesian", seed) - least for seed in range(num_seeds)]
        random = [_best(space, function, "Random", seed) - least for seed in range(num_seeds)]
        optuna = [_best_of_optuna(space, function, seed) - least for seed in range(num_seeds)]
        low, _, high = statistics.quantiles(optuna, n=4)
        middle = statistics.median(ours)
        yield Line(
            case=f"{name},points={NUM_POINTS},seeds={num_seeds}",
            metric="regret_median",
            unit="",
            better="lower",
            ours=round(middle, 5),
            peers={"Optuna alone": round(statistics.median(optuna), 5), "random": round(statistics.median(random), 5)},
            goal="<= Optuna's third quartile, below random",
            met=middle <= high and middle < statistics.median(random),
            samples=num_seeds,
            verified=min(ours) >= -1e-4,
            details={"optuna_quartiles": [round(low, 5), round(high, 5)]},
        )


def _best(space: Space, function: Callable[[Mapping[str, str]], float], strategy: str, seed: int) -> float:
    observations: list[Observation] = []
    for number in range(1, NUM_POINTS + 1):
        question = Question(
            strategy=strategy,
            space=space,
            is_maximized=False,
            observations=tuple(observations),
            seed=seed,
            number=number,
        )
        point = propose(question)
        observations.append(Observation(parameters=point, value=function(point), is_over=True))
    return min(one.value for one in observations if one.value is not None)


def _best_of_optuna(space: Space, function: Callable[[Mapping[str, str]], float], seed: int) -> float:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))

    def objective(trial: Any) -> float:
        point = {}
        for one in space:
            if isinstance(one, Categorical):
                point[one.name] = trial.suggest_categorical(one.name, one.values)
            else:
                is_logarithmic = one.scaling is Scaling.LOGARITHMIC
                point[one.name] = repr(trial.suggest_float(one.name, one.least, one.greatest, log=is_logarithmic))
        return function(point)

    study.optimize(objective, n_trials=NUM_POINTS)
    return float(study.best_value)
