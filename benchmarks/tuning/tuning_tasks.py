"""Quality of the search on real trainings: least loss on held-out examples after some trials, beside other searches.

Where: `bench_tuning` prints the lines. Every search trains the same program with the same first weights, so that two
searches differ only in what they propose.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lines import ROOT, Line
from benchmarks.tuning.json_process import JsonProcess
from benchmarks.tuning.real_data import MINILM, MINILM_NOTE, MINILM_PYTHON, write_features
from benchmarks.tuning.tuning_searches import (
    GP_NOTE,
    SCIPY_PYTHON,
    best_of_optuna,
    best_of_ours,
    best_of_peer,
    gaussian_process,
)
from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Scaling, Space

NUM_POINTS = 30
SCIKIT_NOTE = "scikit-learn is not there: make .venvs/sdk3.stamp"
OURS, RANDOM, OPTUNA, GAUSSIAN = "ours", "random", "Optuna alone", "Gaussian process (Optuna)"
AMT_NOTE = "AMT's search is published as a paper, not as a program; a Gaussian process stands in place of it"


def _logarithmic(name: str, least: float, greatest: float) -> Continuous:
    return Continuous(name=name, least=least, greatest=greatest, scaling=Scaling.LOGARITHMIC)


def _whole(name: str, least: int, greatest: int) -> Integer:
    return Integer(name=name, least=least, greatest=greatest, scaling=Scaling.LOGARITHMIC)


HEAD_SPACE: Space = (
    _logarithmic("lr", 1e-5, 1.0),
    _logarithmic("decay", 1e-6, 10.0),
    _whole("hidden", 2, 64),
    _whole("batch", 16, 256),
    Categorical(name="activation", values=("relu", "tanh")),
)
DIGITS_SPACE: Space = (
    _logarithmic("lr", 1e-5, 1.0),
    _logarithmic("decay", 1e-6, 10.0),
    _whole("hidden", 4, 128),
    _whole("batch", 32, 512),
    Categorical(name="activation", values=("relu", "tanh", "logistic")),
    Categorical(name="solver", values=("adam", "sgd")),
)


@dataclass(frozen=True)
class Found:
    """The least losses that searches have found, one for each seed."""

    losses: Mapping[str, Sequence[float]]
    is_repeatable: bool  # whether the first point of all gave the same loss at the end


def quality_of_tasks(num_seeds: int) -> Iterator[Line]:
    """Search each task with as many seeds; a task whose environment is missing is left out and named."""
    with gaussian_process() as peer, tempfile.TemporaryDirectory() as folder:
        if SCIPY_PYTHON.exists():
            with _task("digits", SCIPY_PYTHON) as task:
                yield line_of("digits", num_seeds, search(DIGITS_SPACE, task, peer, num_seeds))
        else:
            print(f"{SCIKIT_NOTE}; digits are left out", file=sys.stderr)
        if MINILM.is_dir() and MINILM_PYTHON.exists():
            features = Path(folder) / "features.npz"
            write_features(features)
            with _task("minilm-head", Path(sys.executable), str(features)) as task:
                yield line_of("minilm-head", num_seeds, search(HEAD_SPACE, task, peer, num_seeds))
        else:
            print(f"{MINILM_NOTE}; the head is left out", file=sys.stderr)


def search(space: Space, task: JsonProcess, peer: JsonProcess | None, num_seeds: int) -> Found:
    """Have each search tune a task once for each seed.

    Args:
        space: of the task.
        task: that trains.
        peer: a search in another interpreter; None if it is missing.
        num_seeds: of each search.
    """
    first: list[tuple[Mapping[str, str], float]] = []

    def function(point: Mapping[str, str]) -> float:
        loss = float(task.ask(point)["loss"])
        if not first:
            first.append((dict(point), loss))
        return loss

    losses: dict[str, list[float]] = {OURS: [], RANDOM: [], OPTUNA: []}
    for seed in range(num_seeds):
        print(f"seed {seed} of {num_seeds}", file=sys.stderr)
        for name, strategy in ((OURS, "Bayesian"), (RANDOM, "Random")):
            found = best_of_ours(space, function, strategy=strategy, seed=seed, num_points=NUM_POINTS)
            losses[name].append(found)
        losses[OPTUNA].append(best_of_optuna(space, function, seed=seed, num_points=NUM_POINTS))
        if peer is not None:
            found = best_of_peer(peer, space, function, seed=seed, num_points=NUM_POINTS)
            losses.setdefault(GAUSSIAN, []).append(found)
    point, loss = first[0]
    return Found(losses, is_repeatable=function(point) == loss)


def line_of(task: str, num_seeds: int, found: Found) -> Line:
    """Return the line of a task."""
    ours = found.losses[OURS]
    medians = {name: statistics.median(losses) for name, losses in found.losses.items()}
    quartiles = {name: _quartiles(losses) for name, losses in found.losses.items()}
    missing = "" if GAUSSIAN in medians else f"; {GP_NOTE}"
    return Line(
        case=f"{task},points={NUM_POINTS},seeds={num_seeds}",
        metric="best_loss_median",
        unit="",
        better="lower",
        ours=round(medians[OURS], 5),
        peers={name: round(value, 5) for name, value in medians.items() if name != OURS},
        peer_note=AMT_NOTE + missing,
        goal="<= Optuna's third quartile, below random",
        met=medians[OURS] <= quartiles[OPTUNA][1] and medians[OURS] < medians[RANDOM],
        samples=len(ours),
        verified=found.is_repeatable and all(len(losses) == num_seeds for losses in found.losses.values()),
        details={"quartiles": quartiles},
    )


def _quartiles(losses: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(losses, n=4)
    return round(low, 5), round(high, 5)


def _task(name: str, python: Path, *arguments: str) -> contextlib.AbstractContextManager[JsonProcess]:
    command = [str(python), "-m", "benchmarks.tuning.task_program", name, *arguments]
    return JsonProcess(f"task {name}", command, variables={"PYTHONPATH": str(ROOT)})
