"""Optuna by itself, as a peer of our search: `python optuna_peer.py gp|tpe [FOLDER]...`, in lines of JSON.

Where: `tuning_searches` starts it for GPSampler, which wants SciPy and torch: in the interpreter that has SciPy, with
the packages in FOLDERs behind its own, so that NumPy is the one that SciPy knows. It imports nothing of ours.

    {"begin": SEED, "space": [...]}  ->  {"ask": {name: text}}
    {"value": number}                ->  {"ask": {name: text}}
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

SAMPLERS = ("gp", "tpe")


def study_with(kind: str, seed: int) -> Any:
    """Return a new study that minimizes, with a sampler as Optuna makes it by itself."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    samplers = optuna.samplers
    sampler = samplers.GPSampler(seed=seed) if kind == "gp" else samplers.TPESampler(seed=seed)
    return optuna.create_study(sampler=sampler)


def suggested(trial: Any, space: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a point of a space as texts, as hyperparameters are.

    Args:
        trial: that asks.
        space: ranges: `name`, `kind`, and `values`, or `least`, `greatest` and `log`.
    """
    point = {}
    for one in space:
        name = one["name"]
        if one["kind"] == "categorical":
            point[name] = trial.suggest_categorical(name, one["values"])
        elif one["kind"] == "integer":
            point[name] = str(trial.suggest_int(name, one["least"], one["greatest"], log=one["log"]))
        else:
            point[name] = repr(trial.suggest_float(name, one["least"], one["greatest"], log=one["log"]))
    return point


def main() -> None:
    """Answer until the end of the input."""
    kind = sys.argv[1]
    sys.path += sys.argv[2:]
    if kind not in SAMPLERS:
        raise SystemExit(f"sampler: expected one of {SAMPLERS}, got {kind!r}")
    study: Any = None
    trial: Any = None
    space: list[dict[str, Any]] = []
    for line in sys.stdin:
        order = json.loads(line)
        if "begin" in order:
            study, space = study_with(kind, order["begin"]), order["space"]
        else:
            study.tell(trial, order["value"])
        trial = study.ask()
        print(json.dumps({"ask": suggested(trial, space)}), flush=True)


if __name__ == "__main__":
    main()
