"""The state of a tuning job's trials: the best trial, and the number of trials per status. Pure.

Source: TrainingJobStatusCounters, ObjectiveStatusCounters, TuningJobCompletionDetails (AWS API reference).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clary.contract.statuses import TrainingJobStatus
from clary.control.tuning.tuning_job import ObjectiveStatus, Trial
from clary.control.tuning.tuning_request import Objective


def best_of(trials: Iterable[Trial], objective: Objective) -> Trial | None:
    """Return the trial with the best objective, the earliest of equal trials; None if no trial has an objective."""
    best: Trial | None = None
    for trial in sorted(trials, key=lambda one: one.number):
        if trial.value is None:
            continue
        if best is None or best.value is None or objective.is_better(trial.value, best.value):
            best = trial
    return best


def status_counters(trials: Iterable[Trial]) -> dict[str, int]:
    """Return TrainingJobStatusCounters."""
    counters = dict.fromkeys(("Completed", "InProgress", "RetryableError", "NonRetryableError", "Stopped"), 0)
    for trial in trials:
        counters[_counter_of(trial)] += 1
    return counters


def objective_counters(trials: Iterable[Trial]) -> dict[str, int]:
    """Return ObjectiveStatusCounters."""
    counters = {status.value: 0 for status in ObjectiveStatus}
    for trial in trials:
        counters[trial.objective_status.value] += 1
    return counters


def num_not_improving(trials: Sequence[Trial], objective: Objective) -> int:
    """Return the number of trials with an objective that have ended after the best trial."""
    best: float | None = None
    count = 0
    for trial in in_order_of_ends(trials):
        assert trial.value is not None, "only trials with an objective"
        if best is None or objective.is_better(trial.value, best):
            best, count = trial.value, 0
        else:
            count += 1
    return count


def in_order_of_ends(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials with an objective, in the order of their ends."""
    ended = [trial for trial in trials if trial.outcome is not None and trial.outcome.value is not None]
    return sorted(ended, key=lambda trial: (_ended_at(trial), trial.number))


def _ended_at(trial: Trial) -> float:
    assert trial.outcome is not None, "only ended trials"
    at = trial.outcome.training_ended_at or trial.created_at
    return at.timestamp()


def _counter_of(trial: Trial) -> str:
    if trial.outcome is None:
        return "InProgress"
    match trial.outcome.status:
        case TrainingJobStatus.COMPLETED:
            return "Completed"
        case TrainingJobStatus.STOPPED:
            return "Stopped"
        case _:
            return "RetryableError" if trial.outcome.is_retryable else "NonRetryableError"
