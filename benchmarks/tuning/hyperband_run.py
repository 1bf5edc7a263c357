"""Hyperband as the keeper of tuning jobs drives it, over curves in place of training jobs.

Where: `bench_hyperband` counts the epochs. Proposals, ends and promotions are the service's own functions; what is left
out is time: a trial that is ended tells no further value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from clary.contract.statuses import TrainingJobStatus
from clary.control.tuning.configurations import (
    Configuration,
    configurations_of,
    place_of,
    promoted,
    rungs_of,
    why_ended,
)
from clary.control.tuning.search import Question, is_pruned, propose
from clary.control.tuning.standing import best_of
from clary.control.tuning.tuning_job import Trial, TrialOutcome
from clary.control.tuning.tuning_request import Definition, TuningRequest

WholeCurve = Callable[[Mapping[str, str]], Sequence[float]]  # point -> a value of the objective for each epoch

NOW = datetime(2026, 1, 1, tzinfo=UTC)  # of all trials: nothing here depends on time


@dataclass(frozen=True)
class Tuned:
    """A tuning job that has ended."""

    configurations: Sequence[Configuration]
    best: float  # last value of the best trial

    @property
    def num_epochs(self) -> int:
        """How many epochs were trained."""
        return sum(len(one.curve({})) for one in self.configurations)

    @property
    def num_trials(self) -> int:
        """How many training jobs there were."""
        return sum(len(one.trials) for one in self.configurations)


class HyperbandRun:
    """One tuning job.

    Args:
        request: CreateHyperParameterTuningJob with the strategy Hyperband, MaxResource and one definition.
        whole_curve: training to the end; a trial sees only the values up to its own.
        seed: of the proposals.
    """

    def __init__(self, request: Mapping[str, object], whole_curve: WholeCurve, *, seed: int) -> None:
        self._request = TuningRequest(request)
        self._definition: Definition = self._request.definitions[0]
        self._rungs = rungs_of(self._request, self._definition)
        self._whole_curve = whole_curve
        self._seed = seed
        self._trials: dict[int, Trial] = {}
        self._curves: dict[str, tuple[float, ...]] = {}  # training job that runs -> values that it was judged by

    def run(self) -> Tuned:
        """Start and end trials until all have ended."""
        assert self._request.max_jobs is not None, "a benchmark ends"
        while True:
            running = [one for one in self._trials.values() if not one.is_over]
            while len(running) < self._request.max_parallel and len(self._trials) < self._request.max_jobs:
                running.append(self._start())
            if not running:
                break
            for trial in running:
                self._tell(trial)
        best = best_of(list(self._trials.values()), self._definition.objective)
        assert best is not None, "each trial has told a value"
        assert best.value is not None
        return Tuned(self._configurations(), best.value)

    def _start(self) -> Trial:
        number = len(self._trials) + 1
        configurations = self._configurations()
        question = self._question(configurations, number)
        going_on = promoted(configurations, question, self._rungs)
        trial = Trial(
            tuning_job="bench",
            number=number,
            job_name=f"bench-{number}",
            job_arn="",
            definition=self._definition.name,
            parameters=propose(question) if going_on is None else going_on.first.parameters,
            created_at=NOW,
            continues=0 if going_on is None else going_on.first.number,
        )
        self._trials[number] = trial
        return trial

    def _tell(self, trial: Trial) -> None:
        """Have a trial train an epoch and tell its value, and judge it."""
        place = place_of(self._configurations(), trial)
        whole = self._whole_curve(trial.parameters)
        own = self._curves.get(trial.job_name, ())
        told = len(self._configurations()[place].curve(self._curves))
        own = (*own, whole[told])
        self._curves[trial.job_name] = own
        if told + 1 == len(whole):
            self._end(trial, TrainingJobStatus.COMPLETED)
            return
        question = self._question(self._configurations(), trial.number)
        if is_pruned(question, place, self._rungs):
            stopped = replace(trial, stop_reason=why_ended(told + 1, self._rungs, self._definition.objective.metric))
            self._end(stopped, TrainingJobStatus.STOPPED)

    def _end(self, trial: Trial, status: TrainingJobStatus) -> None:
        curve = self._curves.pop(trial.job_name)
        self._trials[trial.number] = replace(trial, outcome=TrialOutcome(status=status, value=curve[-1], curve=curve))

    def _configurations(self) -> list[Configuration]:
        return configurations_of(self._trials.values(), self._definition.name)

    def _question(self, configurations: Sequence[Configuration], number: int) -> Question:
        return Question(
            strategy=self._request.strategy,
            space=self._definition.space,
            is_maximized=self._definition.objective.is_maximized,
            observations=tuple(one.observed(self._curves) for one in configurations),
            seed=self._seed,
            number=number,
        )
