"""Rules evaluate a trial step by step and report findings. The names are smdebug's.

    class TooLarge(Rule):
        def __init__(self, base_trial, limit="10"):
            super().__init__(base_trial)
            self.limit = float(limit)

        def invoke_at_step(self, step):
            return self.base_trial.tensor("loss_output_0").value(step) > self.limit

A rule's parameters are text from requests. Its findings must depend on the trial alone.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from clary.train.debugger.errors import (
    NoMoreData,
    RuleEvaluationConditionMet,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from clary.train.debugger.reading.refreshing import no_refresh
from clary.train.debugger.reading.trial import Trial

_log = logging.getLogger("clary.debugger")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The finding of a rule."""

    text: str  # one sentence with finding, tensor, value and limit
    step: int
    tensor: str = ""  # name of the tensor with the finding, if it is a single tensor
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


class RequiredTensors:
    """The tensors that a rule needs, by trial; `fetch` reads all of them or raises."""

    def __init__(self, base_trial: Trial, other_trials: Iterable[Trial] | None = None) -> None:
        self._base = base_trial
        self._steps: dict[int, dict[str, list[int]]] = {id(one): {} for one in (base_trial, *(other_trials or ()))}
        self._trials = {id(one): one for one in (base_trial, *(other_trials or ()))}

    def add(
        self, name: str, steps: Iterable[int], trial: Trial | None = None, should_match_regex: bool = False
    ) -> None:
        """Request a tensor, or all tensors whose names match, at some steps.

        Args:
            name: name of the tensor, or an expression.
            steps: global steps.
            trial: None for the rule's base trial.
            should_match_regex: whether `name` is an expression.
        Raises: TensorUnavailable.
        """
        trial = trial or self._base
        for one in trial.tensor_names(regex=name) if should_match_regex else [trial.tensor(name).name]:
            self._steps[id(trial)].setdefault(one, []).extend(steps)

    def get_names(self, trial: Trial | None = None) -> list[str]:
        """Return the requested names."""
        return list(self._steps[id(trial or self._base)])

    def get_tensor_steps(self, name: str, trial: Trial | None = None) -> list[int]:
        """Return the steps at which a tensor was requested."""
        return self._steps[id(trial or self._base)][name]

    def get(self, trial: Trial | None = None) -> list[Any]:
        """Return the requested tensors."""
        trial = trial or self._base
        return [trial.tensor(name) for name in self._steps[id(trial)]]

    def clear(self) -> None:
        """Forget the requested tensors."""
        for steps in self._steps.values():
            steps.clear()

    def fetch(self) -> None:
        """Read all requested tensors. Raises: as `Tensor.value`."""
        for key, names in self._steps.items():
            for name, steps in names.items():
                for step in steps:
                    self._trials[key].tensor(name).value(step)


class Rule(ABC):
    """Base of rules.

    Args:
        action_str: accepted for smdebug's sake and ignored; the service carries out actions.
        other_trials: further trials that the rule reads.
    """

    def __init__(self, base_trial: Trial, action_str: str = "", other_trials: Iterable[Trial] | None = None) -> None:
        self.base_trial = base_trial
        self.action_str = action_str
        self.other_trials = list(other_trials) if other_trials is not None else None
        self.trials = [base_trial, *(self.other_trials or ())]
        self.req_tensors = RequiredTensors(base_trial, self.other_trials)
        self.logger = _log
        self.rule_name = type(self).__name__
        self.report: dict[str, Any] = {
            "RuleTriggered": 0,
            "Violations": 0,
            "Details": {},
            "Datapoints": 0,
            "RuleParameters": "",
        }

    def set_required_tensors(self, step: int) -> None:  # noqa: B027 - most rules have none
        """Request tensors through `req_tensors`, to be read before `invoke_at_step` is called. Optional."""

    @abstractmethod
    def invoke_at_step(self, step: int) -> Any:
        """Evaluate a global step; return a Finding or True, or None or False for no finding."""

    def has_looked(self) -> bool:
        """Whether the last invoked step had the rule's tensors; otherwise it does not count as evaluated."""
        return True

    def invoke(self, step: int) -> None:
        """Wait for a global step and evaluate it.

        Raises: RuleEvaluationConditionMet for a finding; otherwise the errors of `Trial.wait_for_steps` and of the
            methods of the rule.
        """
        self.base_trial.wait_for_steps([step])
        for other in self.other_trials or ():
            other.refresh()
        with no_refresh(self.trials):
            self.req_tensors.clear()
            self.set_required_tensors(step)
            self.req_tensors.fetch()
            found = self.invoke_at_step(step)
        if found or self.has_looked():
            self.report["Datapoints"] += 1
        if found:
            self.report["RuleTriggered"] += 1
            self.report["Violations"] += 1
            raise RuleEvaluationConditionMet(self.rule_name, step, finding=found)


def invoke_rule(
    rule_obj: Rule, start_step: int | None = 0, end_step: int | None = None, raise_eval_cond: bool = False
) -> None:
    """Evaluate one step after the other as they are saved; begin again at the first step once another program trains.

    Args:
        end_step: the first step that is not evaluated; None for no end.
        raise_eval_cond: whether to stop at the first finding and raise it; otherwise findings are logged.

    Raises: NoMoreData at the end of the training, RuleEvaluationConditionMet.
    """
    step = start_step or 0
    trial = rule_obj.base_trial
    num_restarts = trial.num_restarts
    while end_step is None or step < end_step:
        try:
            rule_obj.invoke(step)
        except NoMoreData:
            if trial.num_restarts == num_restarts:
                raise
        except (TensorUnavailableForStep, StepUnavailable, TensorUnavailable) as error:
            _log.debug("%s", error)
            if isinstance(error, StepUnavailable):  # the steps of an attempt that continues begin far from 0
                step = max(step, trial.next_step(step) - 1)
        except RuleEvaluationConditionMet as met:
            if raise_eval_cond:
                raise
            _log.info("%s", met)
            if met.end_of_rule:
                return
        step += 1
        if trial.num_restarts != num_restarts:
            num_restarts, step, rule_obj.report["Datapoints"] = trial.num_restarts, start_step or 0, 0
