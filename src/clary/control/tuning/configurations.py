"""Configurations of a tuning job: points of the space with the trials that trained each, one after the other. Pure.

Where: the search sees a configuration as one observation, whether one training job trained it or several, the later
ones from the checkpoints of the earlier. Hyperband goes on with one that it had ended when others have made room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clary.contract.statuses import TrainingJobStatus
from clary.control.tuning.search import Observation, Question, is_pruned
from clary.control.tuning.tuning_job import Trial
from clary.control.tuning.tuning_request import Definition, Objective

Curves = Mapping[str, Sequence[float]]  # training job that runs -> values of the objective that it has told

HYPERBAND = "Hyperband: "  # begins the reason of each stop of Hyperband's
MOST_ASKED = 4  # paused configurations that are looked at before a new one begins; the best come first


@dataclass(frozen=True)
class Configuration:
    """A point of the space and its trials."""

    trials: tuple[Trial, ...]  # in order; at least one

    @property
    def first(self) -> Trial:
        """The trial that began it; its training job's name is in the prefix of the checkpoints."""
        return self.trials[0]

    @property
    def last(self) -> Trial:
        """The trial that trains it, or trained it last."""
        return self.trials[-1]

    @property
    def is_paused(self) -> bool:
        """Whether Hyperband has stopped it; a configuration that has failed or ended by itself stays so."""
        outcome = self.last.outcome
        return (
            outcome is not None
            and outcome.status is TrainingJobStatus.STOPPED
            and outcome.value is not None
            and self.last.stop_reason.startswith(HYPERBAND)
        )

    def curve(self, curves: Curves) -> tuple[float, ...]:
        """Return all values of the objective that it has told.

        Args:
            curves: values of trials that run.
        """
        return tuple(value for one in self.trials for value in _curve_of(one, curves))

    def observed(self, curves: Curves) -> Observation:
        """Return it as the search sees it.

        Args:
            curves: values of trials that run.
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
        trials: all of a tuning job.
        definition: name.
    """
    found: dict[int, list[Trial]] = {}
    for trial in sorted(trials, key=lambda one: one.number):
        if trial.definition == definition:
            # One whose first trial is lost begins anew.
            found.setdefault(trial.continues if trial.continues in found else trial.number, []).append(trial)
    return [Configuration(tuple(found[number])) for number in sorted(found)]


def place_of(configurations: Sequence[Configuration], trial: Trial) -> int:
    """Return the index of a trial's configuration. Raises: StopIteration if no configuration has it."""
    numbers = ({one.number for one in each.trials} for each in configurations)
    return next(index for index, found in enumerate(numbers) if trial.number in found)


def promoted(
    configurations: Sequence[Configuration],
    question: Question,
    definition: Definition,
    resources: tuple[int, int | None],
) -> Configuration | None:
    """Return a paused configuration that Hyperband would not end any more; None if a new one is to begin.

    It can go on without training anything again only where the definition has checkpoints.

    Args:
        configurations: of the definition.
        question: the search's, with the observations of these configurations last.
        definition: of their training jobs.
        resources: least and greatest number of values; None for the greatest of any so far.
    """
    if question.strategy != "Hyperband" or not definition.definition.get("CheckpointConfig"):
        return None
    own = replace(question, observations=question.observations[-len(configurations) :])
    paused = [one for one in configurations if one.is_paused]
    for one in _best_first(paused, definition.objective)[:MOST_ASKED]:
        if not is_pruned(own, place_of(configurations, one.first), resources):
            return one
    return None


def _best_first(configurations: Iterable[Configuration], objective: Objective) -> list[Configuration]:
    """Return paused configurations, those with the best last value first, of equals the earlier."""
    sign = -1.0 if objective.is_maximized else 1.0
    return sorted(configurations, key=lambda one: (sign * (one.last.value or 0.0), one.first.number))


def _curve_of(trial: Trial, curves: Curves) -> Sequence[float]:
    return trial.outcome.curve if trial.outcome is not None else curves.get(trial.job_name, ())
