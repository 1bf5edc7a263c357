"""Metrics that SageMaker's algorithm computes in addition to those of xgboost.

Source: SageMaker developer guide, "Tune an XGBoost model"; definitions as in scikit-learn, where a class that nobody
predicted counts as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clary.train.boosting.errors import UserMistake

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from clary.train.boosting.group import Group

_MAX_CLASSES = 100_000


def classes_of(predictions: NDArray[Any], objective: str) -> NDArray[Any]:
    """Return the predicted class of each row.

    Args:
        predictions: as xgboost gives them for the objective: probabilities, margins, values or classes.
        objective: of the training.
    """
    if predictions.ndim > 1 and predictions.shape[1] > 1:
        return np.asarray(np.argmax(predictions, axis=1))
    flat = predictions.reshape(-1)
    if objective == "binary:logitraw":
        return np.asarray(flat > 0, dtype=int)
    return np.asarray(np.rint(flat), dtype=int)


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """Numbers of hits, of predictions and of rows of each class, over all hosts; classes in ascending order."""

    classes: NDArray[Any]
    hits: NDArray[Any]
    predicted: NDArray[Any]
    actual: NDArray[Any]


def _count(labels: NDArray[Any], found: NDArray[Any], group: Group) -> _Counts:
    classes = np.union1d(labels, found)
    if group.size > 1:
        # All hosts count the same classes: those between the smallest and the largest of any host.
        given = classes if classes.size else np.zeros(1, dtype=int)
        least, most = -group.largest(-int(given[0])), group.largest(int(given[-1]))
        if most - least >= _MAX_CLASSES:
            raise UserMistake(f"metrics of classes need fewer than {_MAX_CLASSES} classes, got {least} to {most}")
        classes = np.arange(least, most + 1)
    places = [np.searchsorted(classes, one) for one in (labels[labels == found], found, labels)]
    counted = np.array([np.bincount(one, minlength=len(classes)) for one in places], dtype=float)
    hits, predicted, actual = group.total(counted.reshape(-1)).reshape(3, -1)
    seen = (predicted > 0) | (actual > 0)
    return _Counts(classes=classes[seen], hits=hits[seen], predicted=predicted[seen], actual=actual[seen])


def _accuracy(counts: _Counts) -> float:
    return float(np.sum(counts.hits) / np.sum(counts.actual))


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.divide(above, below, out=np.zeros_like(above), where=below > 0))


def _balanced_accuracy(counts: _Counts) -> float:
    return float(np.mean(_ratio(counts.hits, counts.actual)[counts.actual > 0]))


def _precision_macro(counts: _Counts) -> float:
    return float(np.mean(_ratio(counts.hits, counts.predicted)))


def _recall_macro(counts: _Counts) -> float:
    return float(np.mean(_ratio(counts.hits, counts.actual)))


def _f1_macro(counts: _Counts) -> float:
    return float(np.mean(_ratio(2 * counts.hits, counts.predicted + counts.actual)))


def _of_class_1(above: str) -> Callable[[_Counts], float]:
    def compute(counts: _Counts) -> float:
        is_class_1 = counts.classes == 1
        hits, predicted, actual = (
            float(np.sum(one[is_class_1])) for one in (counts.hits, counts.predicted, counts.actual)
        )
        below = {"precision": predicted, "recall": actual, "f1": (predicted + actual) / 2}[above]
        return hits / below if below else 0.0

    return compute


def _mse(labels: NDArray[Any], found: NDArray[Any], group: Group) -> float:
    total, number = group.total(np.array([np.sum((labels - found) ** 2), len(labels)]))
    return float(total / number)


def _r2(labels: NDArray[Any], found: NDArray[Any], group: Group) -> float:
    labels = labels.astype(np.float64)
    total, number = group.total(np.array([np.sum(labels), len(labels)]))
    errors, spread = group.total(
        np.array([np.sum((labels - found) ** 2, dtype=np.float64), np.sum((labels - total / number) ** 2)])
    )
    return 1.0 - float(errors) / float(spread) if spread else 0.0


_OF_CLASSES: dict[str, Callable[[_Counts], float]] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "f1": _f1_macro,
    "f1_binary": _of_class_1("f1"),
    "f1_macro": _f1_macro,
    "precision": _of_class_1("precision"),
    "precision_macro": _precision_macro,
    "precision_micro": _accuracy,  # with one label for each row, micro averages are the accuracy
    "recall": _of_class_1("recall"),
    "recall_macro": _recall_macro,
    "recall_micro": _accuracy,
}
_OF_VALUES: dict[str, Callable[[NDArray[Any], NDArray[Any], Group], float]] = {"mse": _mse, "r2": _r2}
OWN_METRICS = frozenset({*_OF_CLASSES, *_OF_VALUES})
OF_CLASS_1 = frozenset({"f1_binary", "precision", "recall"})  # of the two classes 0 and 1


def own_metric(name: str, labels: NDArray[Any], predictions: NDArray[Any], *, objective: str, group: Group) -> float:
    """Return the value of one of `OWN_METRICS` over the rows of all hosts.

    Args:
        name: of the metric.
        labels: of this host's rows.
        predictions: of this host's rows, as xgboost gives them for the objective.
        objective: of the training.
        group: the hosts, which all call this function in the same order.
    """
    if name in _OF_VALUES:
        values = predictions.reshape(len(labels), -1)[:, 0] if len(labels) else predictions.reshape(-1)[:0]
        return _OF_VALUES[name](labels, values, group)
    found = classes_of(predictions, objective) if len(labels) else np.empty(0, dtype=int)
    return _OF_CLASSES[name](_count(labels.astype(int), found, group))
