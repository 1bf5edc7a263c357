"""Rules for classes that have too few samples or are mistaken for another class."""

from __future__ import annotations

import math
from typing import Any

from clary.train.debugger.errors import ConfigurationError
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, Names, as_list, as_number, as_whole, as_yes

_LABELS, _PREDICTIONS = ".*labels", ".*predictions"
# Defaults, in this order: a tensor that the script saved by that name, an argument of its loss.
_WAYS = {
    _LABELS: (".*labels$", ".*CrossEntropyLoss_input_1"),
    _PREDICTIONS: (".*predictions$", ".*CrossEntropyLoss_input_0"),
}


class ClassImbalance(BuiltInRule):
    """One class has far fewer samples than another, or is mostly predicted wrong.

    Formula: max(n) / min(n) > threshold_imbalance, where n is the number of labels of each class among at least the
        last `samples` labels, or wrong / n > threshold_misprediction for some class; the second condition applies once
        twice as many labels have been seen, so that predictions of an untrained model do not count
    Args:
        threshold_imbalance: largest ratio of samples that causes no finding.
        threshold_misprediction: largest share of wrong predictions of a class that causes no finding.
        samples: number of labels before the first finding.
        argmax: whether predictions have a value for each class; False means that only floating predictions with two or
            more dimensions do.
        labels_regex: labels; by default, at a step without a tensor of this name, the second argument of a cross
            entropy.
        predictions_regex: predictions; by default, at a step without a tensor of this name, the first argument of a
            cross entropy.
    """

    def __init__(
        self,
        base_trial: Trial,
        threshold_imbalance: Any = 10,
        threshold_misprediction: Any = 0.7,
        samples: Any = 500,
        argmax: Any = False,
        labels_regex: Names = _LABELS,
        predictions_regex: Names = _PREDICTIONS,
    ) -> None:
        super().__init__(base_trial)
        self.threshold_imbalance = as_number("threshold_imbalance", threshold_imbalance, least=1)
        self.threshold_misprediction = as_number("threshold_misprediction", threshold_misprediction, least=0)
        self.samples = as_whole("samples", samples, least=1)
        self.argmax = as_yes("argmax", argmax)
        self.labels_regex, self.predictions_regex = as_list(labels_regex), as_list(predictions_regex)
        self._num_labels: dict[int, int] = {}  # step -> labels saved at the step

    def invoke_at_step(self, step: int) -> Finding | None:
        """Evaluate a global step; return a finding or None."""
        import numpy as np

        labels, predictions = self._last_samples(step)
        if labels is None or labels.size < self.samples:
            return None
        classes, counts = np.unique(labels, return_counts=True)
        ratio = counts.max() / counts.min()
        if ratio > self.threshold_imbalance:
            rare, common = classes[counts.argmin()], classes[counts.argmax()]
            return self.finding(
                step,
                f"class {common} has {counts.max()} samples, class {rare} {counts.min()}: {ratio:.3g} times as many, "
                f"the limit is {self.threshold_imbalance:g}",
            )
        if predictions is None or self._num_seen(step) < 2 * self.samples:
            return None
        for one, count in zip(classes, counts, strict=True):
            wrong = float(np.mean(predictions[labels == one] != one))
            if wrong > self.threshold_misprediction:
                return self.finding(
                    step,
                    f"{100 * wrong:.3g} % of the {count} samples of class {one} were predicted wrong, the limit is "
                    f"{100 * self.threshold_misprediction:g} %",
                )
        return None

    def _names(self, step: int, regexes: list[str]) -> list[str]:
        """Return the names of tensors of a step; a loss's arguments if a default expression matches no tensor."""
        for way in _WAYS.get(",".join(regexes), (regexes,)):
            if found := self.base_trial.tensor_names(step=step, regex=way):
                return found
        return []

    def _num_seen(self, step: int) -> int:
        for one in self.base_trial.steps():
            if one <= step and one not in self._num_labels:
                names = self._names(one, self.labels_regex)
                self._num_labels[one] = sum(math.prod(self.base_trial.tensor(name).shape(one)) for name in names)
        return sum(number for one, number in self._num_labels.items() if one <= step)

    def _last_samples(self, step: int) -> tuple[Any, Any]:
        import numpy as np

        labels: list[Any] = []
        predictions: list[Any] = []
        num_seen = 0
        for one in reversed([saved for saved in self.base_trial.steps() if saved <= step]):
            given = self._names(one, self.labels_regex)
            told = self._names(one, self.predictions_regex)
            if one == step:
                self.looks_at(given)
            for name in given:
                labels.append(self.base_trial.tensor(name).value(one).ravel())
                num_seen += labels[-1].size
            told_values = [self.base_trial.tensor(name).value(one) for name in told]
            predictions += [predicted(value, is_scores=self.argmax) for value in told_values]
            if num_seen >= self.samples:
                break
        if not labels:
            return None, None
        all_labels = np.concatenate(labels)
        all_predictions = np.concatenate(predictions) if predictions else None
        if all_predictions is not None and all_predictions.shape != all_labels.shape:
            all_predictions = None
        return all_labels, all_predictions


class Confusion(BuiltInRule):
    """A class is often taken for another.

    Formula: c[i][i] < min_diag for some class i, or c[i][j] > max_off_diag for some i != j, where c[i][j] is the share
        of the samples of class j at this step that were predicted as i
    Args:
        category_no: number of classes; by default, from the tensors.
        labels: name or expression of the labels, if the collection has no tensor.
        predictions: name or expression of the predictions, likewise.
        labels_collection: the collection of labels.
        predictions_collection: the collection of predictions.
        min_diag: smallest share of correct predictions of a class that causes no finding.
        max_off_diag: largest share of samples mistaken for one other class that causes no finding.
    """

    def __init__(
        self,
        base_trial: Trial,
        category_no: Any = None,
        labels: Names = "labels",
        predictions: Names = "predictions",
        labels_collection: str = "labels",
        predictions_collection: str = "predictions",
        min_diag: Any = 0.9,
        max_off_diag: Any = 0.1,
    ) -> None:
        super().__init__(base_trial)
        self.category_no = None if category_no in (None, "None") else as_whole("category_no", category_no, least=1)
        self.labels, self.predictions = as_list(labels), as_list(predictions)
        self.labels_collection, self.predictions_collection = labels_collection, predictions_collection
        self.min_diag = as_number("min_diag", min_diag)
        self.max_off_diag = as_number("max_off_diag", max_off_diag)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Evaluate a global step; return a finding or None. Raises: ConfigurationError."""
        import numpy as np

        given = self._values(step, self.labels_collection, self.labels)
        told = self._values(step, self.predictions_collection, self.predictions)
        if not given or not told:
            return None
        self.looks_at(given)
        labels = np.concatenate([value.ravel() for value in given]).astype(int)
        predictions = np.concatenate([predicted(value, is_scores=value.ndim > 1) for value in told]).astype(int)
        if labels.shape != predictions.shape:
            raise ConfigurationError(f"step {step} has {labels.size} labels and {predictions.size} predictions")
        number = self.category_no or int(max(labels.max(), predictions.max())) + 1
        counts = np.zeros((number, number))
        np.add.at(counts, (predictions, labels), 1)
        shares = counts / np.maximum(counts.sum(axis=0), 1)
        for right in np.unique(labels):
            for taken in range(number):
                share = float(shares[taken][right])
                if taken == right and share < self.min_diag:
                    return self.finding(
                        step, f"{100 * share:.3g} % of class {right} are predicted right; expected {self.min_diag:g}"
                    )
                if taken != right and share > self.max_off_diag:
                    return self.finding(
                        step,
                        f"{100 * share:.3g} % of class {right} are taken for {taken}; at most {self.max_off_diag:g}",
                    )
        return None

    def _values(self, step: int, collection: str, names: list[str]) -> list[Any]:
        found = self.base_trial.tensor_names(step=step, collection=collection)
        found = found or self.base_trial.tensor_names(step=step, regex=names)
        return [self.base_trial.tensor(name).value(step) for name in found]


def predicted(value: Any, *, is_scores: bool) -> Any:
    """Return the predicted classes; for scores of each class, the class with the largest score."""
    if (is_scores or value.dtype.kind == "f") and value.ndim > 1:
        value = value.argmax(axis=1)
    return value.ravel()
