"""Metrics that an image reports itself, so that requests with it need no definitions. Pure.

Where: `jobs.job_request` gives them to hosts, `tuning.validation` accepts them as objectives, the answers of Describe
contain them, as those of the real service do. Definitions of a request replace them.
Source: "Tune an XGBoost model" (developer guide) and public answers of DescribeTrainingJob name the metrics; XGBoost
prints `[ROUND]<tab>CHANNEL-METRIC:VALUE`, whose tabs CloudWatch shows as #011.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.contract.settings.built_in_algorithms import is_xgboost

MAX_DEFINITIONS, MAX_REGEX = 40, 500  # limits of a request (AWS API reference)
# Metrics of evaluation rounds, each of which may be tuned.
_VALIDATION = (
    *("accuracy", "auc", "aucpr", "balanced_accuracy", "f1", "f1_binary", "f1_macro", "map", "ndcg", "precision"),
    *("precision_macro", "precision_micro", "r2", "recall", "recall_macro", "recall_micro"),
    *("aft-nloglik", "cox-nloglik", "error", "gamma-deviance", "gamma-nloglik", "interval-regression-accuracy"),
    *("logloss", "mae", "mape", "merror", "mlogloss", "mphe", "mse", "poisson-nloglik", "rmse", "rmsle"),
    "tweedie-nloglik",
)
# As many of the training channel as MAX_DEFINITIONS leaves room for: the usual objectives of XGBoost report these.
_TRAIN = ("rmse", "mae", "logloss", "error", "mlogloss", "merror", "auc")
_NUMBER = r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"


def definitions_of(specification: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return the metric definitions of an AlgorithmSpecification, else those of its image."""
    given = specification.get("MetricDefinitions")
    if given:
        return list(given)
    return _of_xgboost() if is_xgboost(str(specification.get("TrainingImage") or "")) else []


def with_metrics(specification: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an AlgorithmSpecification; without own metric definitions it gets those of its image."""
    definitions = definitions_of(specification)
    return {**specification, "MetricDefinitions": definitions} if definitions else dict(specification)


def _of_xgboost() -> list[Mapping[str, str]]:
    names = [("train", name) for name in _TRAIN] + [("validation", name) for name in _VALIDATION]
    return [
        {"Name": f"{channel}:{name}", "Regex": rf"\[[0-9]+\].*(?:#011|\s){channel}-{name}:({_NUMBER})"}
        for channel, name in names
    ]
