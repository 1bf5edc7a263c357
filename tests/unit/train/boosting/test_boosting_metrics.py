"""SageMaker's own metrics of the built-in XGBoost, against values counted by hand."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from clary.train.boosting.errors import UserMistake
from clary.train.boosting.own_metrics import OWN_METRICS, classes_of, own_metric


class FakeHosts:
    """Hosts as threads, which add up their values and compare them as xgboost's collective operations do."""

    def __init__(self, size):
        self.size = size
        self._barrier = threading.Barrier(size)
        self._values = []

    def _meet(self, value, combine):
        if self._barrier.wait(5) == 0:
            self._values.clear()
        self._barrier.wait(5)
        self._values.append(value)
        self._barrier.wait(5)
        found = combine(self._values)
        self._barrier.wait(5)
        return found

    def total(self, values):
        return self._meet(np.asarray(values, dtype=float), sum)

    def largest(self, value):
        return self._meet(value, max)


ONE = FakeHosts(1)
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
    assert own_metric(name, LABELS, PREDICTIONS, objective="binary:logistic", group=ONE) == pytest.approx(
        EXPECTED[name]
    )


def test_classes_follow_the_objective():
    margins = np.array([-0.4, 0.4, 3.0])
    assert classes_of(margins, "binary:logitraw").tolist() == [0, 1, 1]
    assert classes_of(np.array([0.0, 2.0]), "multi:softmax").tolist() == [0, 2]
    assert classes_of(np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]), "multi:softprob").tolist() == [1, 0]


def test_a_class_that_nobody_predicts_counts_as_zero():
    labels, predictions = np.array([0.0, 0.0, 1.0, 2.0]), np.array([0.0, 0.0, 0.0, 2.0])
    assert own_metric("recall_macro", labels, predictions, objective="multi:softmax", group=ONE) == pytest.approx(2 / 3)
    assert own_metric("precision_macro", labels, predictions, objective="multi:softmax", group=ONE) == pytest.approx(
        5 / 9
    )
    assert own_metric("f1_binary", np.zeros(2), np.zeros(2), objective="binary:hinge", group=ONE) == 0.0


@pytest.mark.parametrize("name", sorted(EXPECTED))
@pytest.mark.parametrize("cut", [0, 2, 3])
def test_hosts_with_parts_of_the_rows_get_the_value_of_all_rows(name, cut):
    hosts = FakeHosts(2)
    with ThreadPoolExecutor(2) as threads:
        parts = [
            threads.submit(own_metric, name, labels, predictions, objective="binary:logistic", group=hosts)
            for labels, predictions in ((LABELS[:cut], PREDICTIONS[:cut]), (LABELS[cut:], PREDICTIONS[cut:]))
        ]
        assert [part.result(10) for part in parts] == pytest.approx([EXPECTED[name]] * 2)


def test_labels_of_several_hosts_that_are_no_classes_are_refused():
    hosts = FakeHosts(2)
    with ThreadPoolExecutor(2) as threads:
        parts = [
            threads.submit(own_metric, "f1", labels, labels, objective="reg:squarederror", group=hosts)
            for labels in (np.array([-1e6]), np.array([1e6]))
        ]
        for part in parts:
            with pytest.raises(UserMistake, match="metrics of classes need fewer than 100000 classes"):
                part.result(10)
