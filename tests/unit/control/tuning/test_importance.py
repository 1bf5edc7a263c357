"""Shares of importance of hyperparameters, and the reasons if there are no shares."""

import pytest
from tuning_trials import METRIC, many_trials, trial, tuning_job, tuning_request

from clary.control.tuning.importance import LEAST_TRIALS, importance_of
from clary.control.tuning.tuning_request import TuningRequest

DEFINITIONS = TuningRequest(tuning_job().request).definitions


@pytest.mark.parametrize("seed", range(4))
def test_the_decisive_parameter_has_the_largest_share_and_all_shares_add_up_to_one(seed):
    shares = importance_of(DEFINITIONS, many_trials(60, seed=seed)).shares
    assert next(iter(shares)) == "lr", shares
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) == {"lr", "momentum", "layers", "optimizer"}
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_equal_trials_give_equal_shares():
    assert importance_of(DEFINITIONS, many_trials(20)) == importance_of(DEFINITIONS, many_trials(20))


def test_for_a_minimized_metric_the_lowest_values_count_as_good():
    objective = {"Type": "Minimize", "MetricName": METRIC}
    request = tuning_request(config={"HyperParameterTuningJobObjective": objective})
    definitions = TuningRequest(request).definitions
    trials = [
        trial(number, (number % 5) / 10, parameters=parameters(lr=10.0 ** -(1 + number % 5), layers=1 + number % 3))
        for number in range(1, 31)
    ]
    assert next(iter(importance_of(definitions, trials).shares)) == "lr"


def parameters(**changes):
    given = {"lr": 0.01, "momentum": 0.9, "layers": 2, "optimizer": "adam", **changes}
    return {name: str(value) for name, value in given.items()}


@pytest.mark.parametrize(
    ("trials", "why"),
    [
        (
            [trial(number) for number in range(1, LEAST_TRIALS)],
            "It needs 8 training jobs with an objective; 7 have one.",
        ),
        ([trial(number, None) for number in range(1, 20)], "It needs 8 training jobs with an objective; 0 have one."),
        ([trial(number, number / 20) for number in range(1, 20)], "It needs 2 hyperparameters that vary; 1 do."),
        (
            [trial(number, 0.5, parameters=parameters(lr=number / 1000, layers=1 + number % 8)) for number in range(9)],
            "All training jobs have the same objective.",
        ),
    ],
)
def test_a_lack_of_shares_has_a_reason(trials, why):
    found = importance_of(DEFINITIONS, trials)
    assert (found.shares, found.why) == (None, why)


def test_definitions_with_separate_ranges_have_no_common_shares():
    found = importance_of([*DEFINITIONS, *DEFINITIONS], many_trials(20))
    assert (found.shares, found.why) == (None, "Each of its training job definitions has ranges of its own.")


def test_trials_outside_the_ranges_are_left_out():
    strange = [trial(100 + number, 0.9, parameters=parameters(lr=9, optimizer="none")) for number in range(3)]
    assert set(importance_of(DEFINITIONS, [*many_trials(20), *strange]).shares) == {
        "lr",
        "momentum",
        "layers",
        "optimizer",
    }
