"""Configurations of a tuning job: points of the space, each with the trials that trained it one after the other. Pure.

Where: the search sees a configuration as one observation, trained by one training job or by several, each starting from
the checkpoints of its predecessor. Hyperband may later continue a configuration that it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clary.contract.statuses import TrainingJobStatus
from clary.control.tuning.search import Observation, Question, Rungs, next_to_go_on
from clary.control.tuning.tuning_job import Trial
from clary.control.tuning.tuning_request import Definition, TuningRequest

Curves = Mapping[str, Sequence[float]]  # running training job -> reported values of the objective

HYPERBAND = "Hyperband: "  # prefix of the stop reasons that Hyperband gives


@dataclass(frozen=True)
class Configuration:
    """A point of the space and its trials."""

    trials: tuple[Trial, ...]  # at least one, in order of number

    @property
    def first(self) -> Trial:
        """The configuration's first trial, whose training job's name is in the prefix of the checkpoints."""
        return self.trials[0]

    @property
    def last(self) -> Trial:
        """The configuration's latest trial, running or ended."""
        return self.trials[-1]

    @property
    def is_paused(self) -> bool:
        """Whether Hyperband has stopped the latest trial; false if that trial failed or ended by itself."""
        outcome = self.last.outcome
        return (
            outcome is not None
            and outcome.status is TrainingJobStatus.STOPPED
            and outcome.value is not None
            and self.last.stop_reason.startswith(HYPERBAND)
        )

    def curve(self, curves: Curves) -> tuple[float, ...]:
        """Return all values of the objective that the configuration's trials have reported.

        Args:
            curves: reported values of running trials.
        """
        return tuple(value for one in self.trials for value in _curve_of(one, curves))

    def observed(self, curves: Curves) -> Observation:
        """Return the search's observation of this configuration.

        Args:
            curves: reported values of running trials.
        """
        outcome = self.last.outcome
        return Observation(
            parameters=self.first.parameters,
            value=None if outcome is None else outcome.value,
            is_over=outcome is not None,
            curve=self.curve(curves),
        )


def configurations_of(trials: Iterable[Trial], definition: str) -> list[Configuration]:
    """Return the configurations of one definition, in the order of their first trials.

    Args:
        trials: all trials of a tuning job.
        definition: name of the definition.
    """
    found: dict[int, list[Trial]] = {}
    for trial in sorted(trials, key=lambda one: one.number):
        if trial.definition == definition:
            # A trial that continues a missing trial begins a configuration of its own.
            found.setdefault(trial.continues if trial.continues in found else trial.number, []).append(trial)
    return [Configuration(tuple(found[number])) for number in sorted(found)]


def place_of(configurations: Sequence[Configuration], trial: Trial) -> int:
    """Return the index of a trial's configuration. Raises: StopIteration if no configuration has it."""
    numbers = ({one.number for one in each.trials} for each in configurations)
    return next(index for index, found in enumerate(numbers) if trial.number in found)


def rungs_of(request: TuningRequest, definition: Definition) -> Rungs:
    """Return the rungs at which a definition's trials are compared; only trials with checkpoints can be continued."""
    least, most = request.hyperband_resources
    can_go_on = bool(definition.definition.get("CheckpointConfig"))
    return Rungs(least=least, most=most or definition.num_epochs, can_go_on=can_go_on)


def why_ended(num_values: int, rungs: Rungs, metric: str) -> str:
    """Return the reason why Hyperband stops a trial.

    Args:
        num_values: number of values that the configuration has reported.
        rungs: at which it is compared.
        metric: name of the objective's metric.
    """
    values = f"{num_values} value{'' if num_values == 1 else 's'} of {metric}"
    if rungs.can_go_on:
        return f"{HYPERBAND}after {values} it waits to be among the best third of its rung"
    return f"{HYPERBAND}after {values} others of its rung are better"


def promoted(configurations: Sequence[Configuration], question: Question, rungs: Rungs) -> Configuration | None:
    """Return the paused configuration that Hyperband continues; None to begin a new one.

    Args:
        configurations: all configurations of the definition.
        question: the search's question, whose last observations are those of `configurations`.
        rungs: at which trials are compared.
    """
    if question.strategy != "Hyperband" or not rungs.can_go_on:
        return None
    own = replace(question, observations=question.observations[len(question.observations) - len(configurations) :])
    paused = [place for place, one in enumerate(configurations) if one.is_paused]
    found = next_to_go_on(own, paused, rungs)
    return None if found is None else configurations[found]


def _curve_of(trial: Trial, curves: Curves) -> Sequence[float]:
    return trial.outcome.curve if trial.outcome is not None else curves.get(trial.job_name, ())
