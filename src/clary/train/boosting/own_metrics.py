"""Metrics that SageMaker's algorithm computes in addition to those of xgboost.

Source: SageMaker developer guide, "Tune an XGBoost model"; definitions as in scikit-learn, where a class that nobody
predicted counts as 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


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


def _accuracy(labels: NDArray[Any], found: NDArray[Any]) -> float:
    return float(np.mean(labels == found))


def _counts(labels: NDArray[Any], found: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return for each class the numbers of hits, of predictions and of rows."""
    classes = np.union1d(labels, found)
    hits = np.array([np.sum((labels == one) & (found == one)) for one in classes], dtype=float)
    predicted = np.array([np.sum(found == one) for one in classes], dtype=float)
    actual = np.array([np.sum(labels == one) for one in classes], dtype=float)
    return hits, predicted, actual


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.divide(above, below, out=np.zeros_like(above), where=below > 0))


def _balanced_accuracy(labels: NDArray[Any], found: NDArray[Any]) -> float:
    hits, _, actual = _counts(labels, found)
    return float(np.mean(_ratio(hits, actual)[actual > 0]))


def _precision_macro(labels: NDArray[Any], found: NDArray[Any]) -> float:
    hits, predicted, _ = _counts(labels, found)
    return float(np.mean(_ratio(hits, predicted)))


def _recall_macro(labels: NDArray[Any], found: NDArray[Any]) -> float:
    hits, _, actual = _counts(labels, found)
    return float(np.mean(_ratio(hits, actual)))


def _f1_macro(labels: NDArray[Any], found: NDArray[Any]) -> float:
    hits, predicted, actual = _counts(labels, found)
    return float(np.mean(_ratio(2 * hits, predicted + actual)))


def _of_class_1(above: str) -> Callable[[NDArray[Any], NDArray[Any]], float]:
    def compute(labels: NDArray[Any], found: NDArray[Any]) -> float:
        hits = float(np.sum((labels == 1) & (found == 1)))
        predicted, actual = float(np.sum(found == 1)), float(np.sum(labels == 1))
        below = {"precision": predicted, "recall": actual, "f1": (predicted + actual) / 2}[above]
        return hits / below if below else 0.0

    return compute


def _mse(labels: NDArray[Any], found: NDArray[Any]) -> float:
    return float(np.mean((labels - found) ** 2))


def _r2(labels: NDArray[Any], found: NDArray[Any]) -> float:
    spread = float(np.sum((labels - np.mean(labels)) ** 2))
    return 1.0 - float(np.sum((labels - found) ** 2)) / spread if spread else 0.0


_OF_CLASSES: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
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
_OF_VALUES: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {"mse": _mse, "r2": _r2}
OWN_METRICS = frozenset({*_OF_CLASSES, *_OF_VALUES})
OF_CLASS_1 = frozenset({"f1_binary", "precision", "recall"})  # of the two classes 0 and 1


def own_metric(name: str, labels: NDArray[Any], predictions: NDArray[Any], *, objective: str) -> float:
    """Return the value of one of `OWN_METRICS`.

    Args:
        name: of the metric.
        labels: of the rows.
        predictions: of the rows, as xgboost gives them for the objective.
        objective: of the training.
    """
    if name in _OF_VALUES:
        return _OF_VALUES[name](labels, predictions.reshape(len(labels), -1)[:, 0])
    return _OF_CLASSES[name](labels.astype(int), classes_of(predictions, objective))
