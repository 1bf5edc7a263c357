"""Quality of the search on real trainings: least loss on held-out examples after some trials, beside other searches.

Where: `bench_tuning` prints the lines. Every search trains the same program with the same first weights, so that two
searches differ only in what they propose.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lines import ROOT, Line
from benchmarks.tuning.json_process import JsonProcess
from benchmarks.tuning.real_data import MINILM, MINILM_NOTE, MINILM_PYTHON, write_features
from benchmarks.tuning.search_comparison import line_of, search
from benchmarks.tuning.tuning_searches import SCIPY_PYTHON, Function, gaussian_process
from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Scaling, Space

NUM_POINTS = 30
SCIKIT_NOTE = "scikit-learn is not there: make .venvs/sdk3.stamp"


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


def quality_of_tasks(num_seeds: int) -> Iterator[Line]:
    """Search each task with as many seeds; a task whose environment is missing is left out and named."""
    with gaussian_process() as peer, tempfile.TemporaryDirectory() as folder:
        if SCIPY_PYTHON.exists():
            with _task("digits", SCIPY_PYTHON) as task:
                yield _line(task, "digits", DIGITS_SPACE, peer, num_seeds)
        else:
            print(f"{SCIKIT_NOTE}; digits are left out", file=sys.stderr)
        if MINILM.is_dir() and MINILM_PYTHON.exists():
            features = Path(folder) / "features.npz"
            write_features(features)
            with _task("minilm-head", Path(sys.executable), str(features)) as task:
                yield _line(task, "minilm-head", HEAD_SPACE, peer, num_seeds)
        else:
            print(f"{MINILM_NOTE}; the head is left out", file=sys.stderr)


def loss_of(task: JsonProcess) -> Function:
    """Return a function that has a task trained at a point, and returns its loss."""
    return lambda point: float(task.ask(point)["loss"])


def _line(task: JsonProcess, name: str, space: Space, peer: JsonProcess | None, num_seeds: int) -> Line:
    found = search(space, loss_of(task), peer, num_seeds=num_seeds, num_points=NUM_POINTS, name=name)
    return line_of(f"{name},points={NUM_POINTS},seeds={num_seeds}", "best_loss_median", found, num_seeds=num_seeds)


def _task(name: str, python: Path, *arguments: str) -> contextlib.AbstractContextManager[JsonProcess]:
    command = [str(python), "-m", "benchmarks.tuning.task_program", name, *arguments]
    return JsonProcess(f"task {name}", command, variables={"PYTHONPATH": str(ROOT)})
