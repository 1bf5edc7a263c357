"""The best trial, the counters, and the number of trials without improvement."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tuning_trials import METRIC, trial

from clary.contract.statuses import TrainingJobStatus
from clary.control.tuning.standing import (
    best_of,
    in_order_of_ends,
    num_not_improving,
    objective_counters,
    status_counters,
)
from clary.control.tuning.tuning_request import Objective

MORE, LESS = (Objective(metric=METRIC, is_maximized=is_maximized) for is_maximized in (True, False))
values = st.lists(st.none() | st.floats(-10, 10), max_size=12)


def ended_as(number, status, *, value=None, is_retryable=False):
    one = trial(number, value)
    return replace(one, outcome=replace(one.outcome, status=status, is_retryable=is_retryable))


def test_there_is_no_best_of_trials_without_an_objective():
    assert best_of([], MORE) is None
    assert best_of([trial(1, None), trial(2, outcome=None)], MORE) is None


def test_the_earlier_of_equal_trials_is_the_best():
    trials = [trial(3, 1.0), trial(2, 1.0), trial(1, 0.5), trial(4, None)]
    assert best_of(trials, MORE).number == 2
    assert best_of(trials, LESS).number == 1


@given(values=values)
def test_no_trial_is_better_than_the_best(values):
    trials = [trial(number, value) for number, value in enumerate(values, start=1)]
    known = [value for value in values if value is not None]
    for objective, extreme in ((MORE, max), (LESS, min)):
        best = best_of(trials, objective)
        assert (None if best is None else best.value) == (extreme(known) if known else None)


def test_each_end_has_its_counter():
    trials = [
        trial(1, 0.5),
        trial(2, outcome=None),
        ended_as(3, TrainingJobStatus.STOPPED, value=0.1),
        ended_as(4, TrainingJobStatus.FAILED),
        ended_as(5, TrainingJobStatus.FAILED, is_retryable=True),
        ended_as(6, TrainingJobStatus.FAILED),
    ]
    assert status_counters(trials) == {
        "Completed": 1,
        "InProgress": 1,
        "RetryableError": 1,
        "NonRetryableError": 2,
        "Stopped": 1,
    }
    assert objective_counters(trials) == {"Succeeded": 2, "Pending": 1, "Failed": 3}
    assert sum(status_counters([]).values()) == sum(objective_counters([]).values()) == 0


def test_trials_are_sorted_by_their_ends_and_not_by_their_starts():
    trials = [trial(1, 0.1, minutes=9), trial(2, 0.2, minutes=3), trial(3, None, minutes=1), trial(4, 0.4, minutes=3)]
    assert [one.number for one in in_order_of_ends([*trials, trial(5, outcome=None)])] == [2, 4, 1]


def test_a_trial_that_never_trained_counts_as_ended_at_its_creation():
    never = trial(2, 0.2)
    never = replace(never, outcome=replace(never.outcome, training_ended_at=None))
    assert [one.number for one in in_order_of_ends([trial(1, 0.1), never])] == [2, 1]


def test_trials_that_ended_since_the_best_are_counted():
    numbers = [0.5, 0.4, 0.6, 0.6, None, 0.1]
    trials = [trial(number, value) for number, value in enumerate(numbers, start=1)]
    assert (
        num_not_improving(trials, MORE) == 2
    )  # an equal trial is no improvement; a trial without an objective is not counted
    assert num_not_improving(trials, LESS) == 0
    assert num_not_improving(trials[:5], LESS) == 2
    assert num_not_improving([], MORE) == 0


def test_a_late_end_of_an_early_trial_counts_at_its_end():
    assert num_not_improving([trial(1, 0.9, minutes=30), trial(2, 0.1), trial(3, 0.05)], MORE) == 0
