"""Training without progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from clary.train.debugger.errors import RuleEvaluationConditionMet, StepNotYetAvailable
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.saved_steps import StepState
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, as_number, as_yes

_PAUSE_S = 1.0


class StalledTrainingRule(BuiltInRule):
    """No step has been saved for a long time.

    Formula: t - p > threshold, where t is the time at which the step was saved and p the time of the step before; while
        the rule waits for a step, t is the current time, and p the time at which it began to wait or saw a newer step
    Args:
        threshold: longest accepted time without a step, in seconds.
        stop_training_on_fire: stored for the rule's caller; this library stops no jobs.
        training_job_name_prefix: stored for the rule's caller.
    """

    def __init__(
        self,
        base_trial: Trial,
        threshold: Any = 1800,
        stop_training_on_fire: Any = False,
        training_job_name_prefix: str | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(base_trial)
        self.threshold = as_number("threshold", threshold, least=0)
        self.stop_training_on_fire = as_yes("stop_training_on_fire", stop_training_on_fire)
        self.training_job_name_prefix = training_job_name_prefix
        self._monotonic, self._sleep = monotonic, sleep

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        self.looks_at(["the time"])  # every saved step has a time
        times = self.base_trial.written_at
        before = max((one for one in times if one < step), default=None)
        if before is None or step not in times or times[step] - times[before] <= self.threshold:
            return None
        passed_s = times[step] - times[before]
        return self.finding(
            step, f"{passed_s:.0f} s have passed since step {before}, the limit is {self.threshold:g} s"
        )

    def invoke(self, step: int) -> None:
        """Wait for a step while new steps keep appearing within `threshold` seconds of each other, then check it.

        Raises: RuleEvaluationConditionMet if no new step appears within `threshold`.
        """
        newest, since = self.base_trial.steps(show_incomplete_steps=True)[-1:], self._monotonic()
        while self.base_trial.has_passed_step(step) is StepState.NOT_YET_AVAILABLE:
            found = self.base_trial.steps(show_incomplete_steps=True)[-1:]
            if found != newest:
                newest, since = found, self._monotonic()
            if self._monotonic() - since > self.threshold:
                text = f"nothing was saved for {self.threshold:g} s after {newest or 'the beginning'}"
                raise RuleEvaluationConditionMet(
                    self.rule_name, step, end_of_rule=True, finding=self.finding(step, text)
                ) from StepNotYetAvailable(step, ModeKeys.GLOBAL)
            self._sleep(min(_PAUSE_S, self.threshold / 4))
        super().invoke(step)
