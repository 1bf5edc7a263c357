"""Comparison of two trainings that should be equal."""

from __future__ import annotations

from collections.abc import Iterable

from clary.train.debugger.errors import InsufficientInformationForRuleInvocation
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.reading.trial_places import create_trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, Names


class SimilarAcrossRuns(BuiltInRule):
    """A tensor differs from the same tensor in another training.

    Formula: not |x - y| <= 1e-8 + 1e-5 * |y| for all values, for some chosen tensor x, where y is the same tensor at
        the same step in the other training, if it has the tensor; NaN equals NaN, and another shape is a finding, too
    Args:
        other_trials: the trial of the other training, or its path.
        collection_names: collections of tensors to check, in addition to those of tensor_regex; all tensors if neither
            is given.
        tensor_regex: regular expressions of names of tensors to check.
    """

    def __init__(
        self,
        base_trial: Trial,
        other_trials: Trial | str | Iterable[Trial | str] | None = None,
        collection_names: Names = None,
        tensor_regex: Names = None,
    ) -> None:
        given = [other_trials] if isinstance(other_trials, Trial | str) else list(other_trials or ())
        if len(given) != 1:
            raise InsufficientInformationForRuleInvocation(
                "SimilarAcrossRuns", f"other_trials names {len(given)} trainings, expected one"
            )
        trials = [create_trial(one) if isinstance(one, str) else one for one in given]
        super().__init__(base_trial, other_trials=trials)
        self.collection_names, self.tensor_regex = collection_names, tensor_regex

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        import numpy as np

        assert self.other_trials is not None
        other = self.other_trials[0]
        there = set(other.tensor_names(step=step))
        names = self.chosen(step, self.collection_names, self.tensor_regex)
        for name in self.looks_at([name for name in names if name in there]):
            ours, theirs = self.base_trial.tensor(name).value(step), other.tensor(name).value(step)
            if ours.shape != theirs.shape:
                return self.finding(step, f"{name} has the shape {ours.shape}, in {other.name} {theirs.shape}", name)
            if not np.allclose(ours, theirs, equal_nan=True):
                largest = float(np.abs(ours.astype("f8") - theirs.astype("f8")).max())
                return self.finding(step, f"{name} differs from {other.name} by up to {largest:.3g}", name)
        return None
