"""SageMaker's own metrics of the built-in XGBoost, against values counted by hand."""

import numpy as np
import pytest

from clary.train.boosting.own_metrics import OWN_METRICS, classes_of, own_metric

LABELS = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
PREDICTIONS = np.array([0.9, 0.8, 0.2, 0.7, 0.1])  # hits: two of three ones, one of two zeros
EXPECTED = {
    "accuracy": 3 / 5,
    "precision_micro": 3 / 5,
    "recall_micro": 3 / 5,
    "precision": 2 / 3,
    "recall": 2 / 3,
    "f1_binary": 2 / 3,
    "precision_macro": (1 / 2 + 2 / 3) / 2,
    "recall_macro": (1 / 2 + 2 / 3) / 2,
    "balanced_accuracy": (1 / 2 + 2 / 3) / 2,
    "f1": (1 / 2 + 2 / 3) / 2,
    "f1_macro": (1 / 2 + 2 / 3) / 2,
    "mse": (0.01 + 0.04 + 0.64 + 0.49 + 0.01) / 5,
    "r2": 1 - (0.01 + 0.04 + 0.64 + 0.49 + 0.01) / 1.2,
}


def test_every_metric_has_an_expected_value():
    assert set(EXPECTED) == OWN_METRICS


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_metric_is_the_counted_value(name):
    assert own_metric(name, LABELS, PREDICTIONS, objective="binary:logistic") == pytest.approx(EXPECTED[name])


def test_classes_follow_the_objective():
    margins = np.array([-0.4, 0.4, 3.0])
    assert classes_of(margins, "binary:logitraw").tolist() == [0, 1, 1]
    assert classes_of(np.array([0.0, 2.0]), "multi:softmax").tolist() == [0, 2]
    assert classes_of(np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]), "multi:softprob").tolist() == [1, 0]


def test_a_class_that_nobody_predicts_counts_as_zero():
    labels, predictions = np.array([0.0, 0.0, 1.0, 2.0]), np.array([0.0, 0.0, 0.0, 2.0])
    assert own_metric("recall_macro", labels, predictions, objective="multi:softmax") == pytest.approx(2 / 3)
    assert own_metric("precision_macro", labels, predictions, objective="multi:softmax") == pytest.approx(5 / 9)
    assert own_metric("f1_binary", np.zeros(2), np.zeros(2), objective="binary:hinge") == 0.0
