"""Training that continues without improvement."""

from __future__ import annotations

from typing import Any

from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, Names, as_list, as_number, as_whole


class Overfit(BuiltInRule):
    """Losses in validation are larger than in training.

    Formula: (mean(v) - mean(t)) / |mean(t)| > ratio_threshold on more than `patience` validation steps in a row, where
        v are the losses so far in this round of validation and t the training losses since the round before
    Args:
        tensor_regex: regular expressions of names of losses to check; if not given, the tensors of the collection named
            losses.
        start_step: the first global step to check.
        patience: largest accepted number of steps in a row above the ratio.
        ratio_threshold: largest ratio that is accepted.
    """

    def __init__(
        self,
        base_trial: Trial,
        tensor_regex: Names = None,
        start_step: Any = 0,
        patience: Any = 1,
        ratio_threshold: Any = 0.1,
    ) -> None:
        super().__init__(base_trial)
        self.tensor_regex = as_list(tensor_regex)
        self.start_step = as_whole("start_step", start_step)
        self.patience = as_whole("patience", patience)
        self.ratio_threshold = as_number("ratio_threshold", ratio_threshold)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        if step < self.start_step or self.base_trial.mode(step) is not ModeKeys.EVAL:
            return None
        for name in self.looks_at(self.chosen(step, None if self.tensor_regex else "losses", self.tensor_regex)):
            validation = self.loss_steps(name, ModeKeys.EVAL, step)
            training = self.loss_steps(name, ModeKeys.TRAIN, step)
            last = [one for one in validation if one >= self.start_step][-self.patience - 1 :]
            ratios = [self._ratio(name, one, validation, training) for one in last]
            if len(last) > self.patience and all(ratio > self.ratio_threshold for ratio in ratios):
                return self.finding(
                    step,
                    f"{name} in validation is {100 * ratios[-1]:.3g} % above training for {len(last)} steps, the limit "
                    f"is {100 * self.ratio_threshold:g} %",
                    name,
                )
        return None

    def _ratio(self, name: str, step: int, validation: list[int], training: list[int]) -> float:
        last_training = max((one for one in training if one < step), default=-1)
        round_ = [one for one in validation if last_training < one <= step]
        before = max((one for one in validation if one < round_[0]), default=-1)
        since = [one for one in training if before < one < round_[0]]
        if not since:
            return 0.0
        mean_v = sum(self.number(name, one) for one in round_) / len(round_)
        mean_t = sum(self.number(name, one) for one in since) / len(since)
        return (mean_v - mean_t) / abs(mean_t) if mean_t else 0.0


class Overtraining(BuiltInRule):
    """A loss has not improved for many steps, in training or in validation.

    Formula: the loss has not fallen more than delta below its best value for more than patience_train saved training
        steps, or for more than patience_validation saved validation steps
    Args:
        patience_train: limit of saved training steps without an improvement.
        patience_validation: limit of saved validation steps without an improvement.
        delta: a loss counts as an improvement if it is below the best so far by more than this.
    """

    def __init__(
        self, base_trial: Trial, patience_train: Any = 5, patience_validation: Any = 10, delta: Any = 0.01
    ) -> None:
        super().__init__(base_trial)
        self.patience_train = as_whole("patience_train", patience_train, least=1)
        self.patience_validation = as_whole("patience_validation", patience_validation, least=1)
        self.delta = as_number("delta", delta, least=0)

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        mode = self.base_trial.mode(step)
        if mode is ModeKeys.PREDICT:
            return None
        patience = self.patience_validation if mode is ModeKeys.EVAL else self.patience_train
        for name in self.looks_at(self.chosen(step, "losses")):
            losses = [self.number(name, one) for one in self.loss_steps(name, mode, step)]
            without = steps_without_improvement(losses, self.delta)
            if without > patience:
                return self.finding(
                    step,
                    f"{name} has not gone below {min(losses):.6g} by more than {self.delta:g} for {without} saved "
                    f"steps of {mode.name}, {patience} are allowed",
                    name,
                )
        return None


def steps_without_improvement(losses: list[float], delta: float) -> int:
    """Return the number of losses since the last improvement: a loss below the best so far by more than `delta`."""
    best, since = float("inf"), 0
    for loss in losses:
        if loss < best - delta:
            best, since = loss, 0
        else:
            since += 1
    return since
