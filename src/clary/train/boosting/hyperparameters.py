"""Hyperparameters of the algorithm: their names, types and ranges, from the text of hyperparameters.json. Pure.

Source: SageMaker developer guide, "XGBoost hyperparameters", of the releases 0.72 to 3.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clary.contract.settings.hyperparameters import is_platform_key
from clary.train.boosting.errors import UserMistake
from clary.train.boosting.numbers import Parse, as_given, one_of, real, structure, whole, words
from clary.train.boosting.own_metrics import OF_CLASS_1, OWN_METRICS

TUNING_OBJECTIVE = "_tuning_objective_metric"  # the tuning job adds it to the hyperparameters of its trials
_FLAG = one_of("true", "false")
# Parameters of `xgboost.train`, which gets them under the same names.
_PARAMETERS: Mapping[str, Parse] = {
    "aft_loss_distribution": one_of("normal", "logistic", "extreme"),
    "aft_loss_distribution_scale": real(above=0),
    "alpha": real(0),
    "base_score": real(),
    "booster": one_of("gbtree", "gblinear", "dart"),
    "colsample_bylevel": real(0, 1),
    "colsample_bynode": real(0, 1),
    "colsample_bytree": real(0, 1),
    "deterministic_histogram": _FLAG,
    "dsplit": one_of("row", "col"),
    "eta": real(0, 1),
    "gamma": real(0),
    "grow_policy": one_of("depthwise", "lossguide"),
    "huber_slope": real(above=0),
    "interaction_constraints": structure,
    "lambda": real(0),
    "lambda_bias": real(0, 1),
    "max_bin": whole(0),
    "max_delta_step": real(0),
    "max_depth": whole(0),
    "max_leaves": whole(0),
    "min_child_weight": real(0),
    "monotone_constraints": structure,
    "normalize_type": one_of("tree", "forest"),
    "nthread": whole(1),
    "num_class": whole(2),
    "num_parallel_tree": whole(1),
    "objective": as_given,
    "one_drop": whole(0, 1),
    "predictor": one_of("auto", "cpu_predictor", "gpu_predictor"),
    "prob_buffer_row": real(0),
    "process_type": one_of("default", "update"),
    "rate_drop": real(0, 1),
    "refresh_leaf": whole(0, 1),
    "sample_type": one_of("uniform", "weighted"),
    "sampling_method": one_of("uniform", "gradient_based"),
    "scale_pos_weight": real(above=0),
    "seed": whole(-(2**31), 2**31 - 1),
    "single_precision_histogram": _FLAG,
    "sketch_eps": real(above=0, most=1),
    "skip_drop": real(0, 1),
    "subsample": real(0, 1),
    "tree_method": one_of("auto", "exact", "approx", "hist", "gpu_hist"),
    "tweedie_variance_power": real(above=1, most=2),
    "updater": words,
    "verbosity": whole(0, 3),
}
# Hyperparameters that this program acts on itself.
_OWN: Mapping[str, Parse] = {
    "num_round": whole(1),
    "csv_weights": whole(0, 1),
    "early_stopping_rounds": whole(1),
    "eval_metric": words,
    "save_model_on_termination": _FLAG,
    "silent": whole(0, 1),
}
_REFUSED: Mapping[str, str] = {
    "use_dask_gpu_training": "training on several GPUs by Dask is not offered here",
    "_kfold": "cross-validation is not offered here",
    "_num_cv_round": "cross-validation is not offered here",
}


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Parsed hyperparameters."""

    parameters: Mapping[str, Any]  # of `xgboost.train`, without metrics
    num_round: int
    metrics: tuple[str, ...] = ()  # that xgboost knows; empty: the default of the objective
    own_metrics: tuple[str, ...] = ()  # that SageMaker adds
    stopping_metric: str | None = None  # by which `early_stopping_rounds` judges; None: the last one
    early_stopping_rounds: int | None = None
    has_weights: bool = False  # whether the second column of CSV is the row's weight
    saves_on_termination: bool = False
    notes: tuple[str, ...] = ()


def parse_hyperparameters(texts: Mapping[str, str]) -> Hyperparameters:
    """Parse the content of hyperparameters.json; keys of the platform are left out.

    Raises: UserMistake with the name of a hyperparameter that is missing, unknown, not offered, or out of range.
    """
    values: dict[str, Any] = {}
    for name, given in texts.items():
        if name == TUNING_OBJECTIVE or is_platform_key(name):
            continue
        if name in _REFUSED and given.lower() not in ("false", "0"):
            raise UserMistake(f"hyperparameter {name}: {_REFUSED[name]}; leave it out")
        if name in _REFUSED:
            continue
        parse = _PARAMETERS.get(name) or _OWN.get(name)
        if parse is None:
            raise UserMistake(f"hyperparameter {name}: the algorithm XGBoost has no hyperparameter of this name")
        text = _plain(given)
        try:
            values[name] = parse(text)
        except ValueError as error:
            raise UserMistake(f"hyperparameter {name}: expected {error}, got {text[:80]!r}") from None
    if "num_round" not in values:
        raise UserMistake("hyperparameter num_round is missing: set the number of rounds, such as 100")
    if str(values.get("objective", "")).startswith("multi:") and "num_class" not in values:
        raise UserMistake(f"hyperparameter num_class is missing: objective {values['objective']} needs it")
    notes = ["hyperparameter silent has no effect: use verbosity"] if "silent" in values else []
    objective = _plain(texts[TUNING_OBJECTIVE]).rpartition(":")[2] if TUNING_OBJECTIVE in texts else None
    metrics = list(values.get("eval_metric", ()))
    if objective is not None and objective not in metrics:
        metrics.append(objective)
    of_two = [name for name in metrics if name in OF_CLASS_1]
    if of_two and values.get("num_class", 2) > 2:
        raise UserMistake(f"metric {of_two[0]} is of two classes, but num_class is {values['num_class']}")
    return Hyperparameters(
        parameters={name: _value(name, values[name]) for name in _PARAMETERS if name in values},
        num_round=values["num_round"],
        metrics=tuple(name for name in metrics if name not in OWN_METRICS),
        own_metrics=tuple(name for name in metrics if name in OWN_METRICS),
        stopping_metric=objective or (metrics[-1] if metrics else None),
        early_stopping_rounds=values.get("early_stopping_rounds"),
        has_weights=values.get("csv_weights") == 1,
        saves_on_termination=values.get("save_model_on_termination") == "true",
        notes=tuple(notes),
    )


def _plain(text: str) -> str:
    """Return the string inside a JSON string, which framework estimators of SDK v2 send; any other text itself."""
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text.strip()


def _value(name: str, value: Any) -> Any:
    if name == "updater":
        return ",".join(value)
    if name in ("monotone_constraints", "interaction_constraints"):
        return str(tuple(value)) if name == "monotone_constraints" else json.dumps(value)
    return value
