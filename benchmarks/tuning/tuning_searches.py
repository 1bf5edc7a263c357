"""Searches that are compared: ours, random, Optuna's TPE and Optuna's Gaussian process; each after so many points.

Where: `tuning_quality` has them search functions, `tuning_tasks` real trainings.
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.lines import ROOT
from benchmarks.tuning.json_process import JsonProcess
from benchmarks.tuning.optuna_peer import study_with, suggested
from clary.control.tuning.parameter_space import Categorical, Integer, Scaling, Space
from clary.control.tuning.search import Observation, Question, propose

Function = Callable[[Mapping[str, str]], float]  # point -> value; the least is the best

SCIPY_PYTHON = ROOT / ".venvs/sdk3/bin/python"
TORCH_PACKAGES = ROOT / ".venvs/train" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
GP_NOTE = "Optuna's GPSampler wants SciPy and torch: make .venvs/sdk3.stamp .venvs/train.stamp"
PEER_PROGRAM = Path(__file__).with_name("optuna_peer.py")


def best_of_ours(space: Space, function: Function, *, strategy: str, seed: int, num_points: int) -> float:
    """Return the least value that our search finds.

    Args:
        space: of the points.
        function: of a point.
        strategy: Bayesian, or Random.
        seed: of the proposals.
        num_points: that it may try.
    """
    observations: list[Observation] = []
    for number in range(1, num_points + 1):
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


def best_of_optuna(space: Space, function: Function, *, seed: int, num_points: int) -> float:
    """Return the least value that Optuna finds with its default sampler."""
    study, ranges = study_with("tpe", seed), as_ranges(space)
    study.optimize(lambda trial: function(suggested(trial, ranges)), n_trials=num_points)
    return float(study.best_value)


def best_of_peer(peer: JsonProcess, space: Space, function: Function, *, seed: int, num_points: int) -> float:
    """Return the least value that a search in another interpreter finds."""
    asked = peer.ask({"begin": seed, "space": as_ranges(space)})["ask"]
    values = [function(asked)]
    while len(values) < num_points:
        values.append(function(peer.ask({"value": values[-1]})["ask"]))
    return min(values)


@contextlib.contextmanager
def gaussian_process() -> Iterator[JsonProcess | None]:
    """Start Optuna's GPSampler where SciPy is, with torch and Optuna of other environments; None if one is missing."""
    if not SCIPY_PYTHON.exists() or not TORCH_PACKAGES.exists():
        yield None
        return
    command = [str(SCIPY_PYTHON), str(PEER_PROGRAM), "gp", str(TORCH_PACKAGES), sysconfig.get_paths()["purelib"]]
    # Torch is not to load our backend for collectives, which it finds beside itself.
    with JsonProcess("Optuna's GPSampler", command, variables={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}) as peer:
        yield peer


def as_ranges(space: Space) -> list[dict[str, Any]]:
    """Return a space as `optuna_peer` reads it. Raises: ValueError for a reverse logarithmic range."""
    ranges: list[dict[str, Any]] = []
    for one in space:
        if isinstance(one, Categorical):
            ranges.append({"name": one.name, "kind": "categorical", "values": list(one.values)})
            continue
        if one.scaling is Scaling.REVERSE_LOGARITHMIC:
            raise ValueError(f"{one.name}: Optuna alone has no {one.scaling.value} ranges")
        kind = "integer" if isinstance(one, Integer) else "continuous"
        is_logarithmic = one.scaling is Scaling.LOGARITHMIC
        ranges.append(
            {"name": one.name, "kind": kind, "least": one.least, "greatest": one.greatest, "log": is_logarithmic}
        )
    return ranges
