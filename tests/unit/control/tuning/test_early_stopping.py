"""The median rule, by hand-calculated examples."""

import pytest

from clary.control.tuning.early_stopping import why_stop
from clary.control.tuning.tuning_request import Objective

LOSS = Objective(metric="loss", is_maximized=False)
ACCURACY = Objective(metric="accuracy", is_maximized=True)
# Averages of the first two values: 3.5, 2.5, 3.0; their median is 3.0. Averages of all three: 10/3, 2.0, 8/3.
OTHERS = [[4.0, 3.0, 3.0], [3.0, 2.0, 1.0], [3.5, 2.5, 2.0]]


def test_a_trial_whose_best_is_worse_than_the_median_of_averages_stops():
    assert why_stop([5.0, 3.1], OTHERS, LOSS) == (
        "early stopping: the best of its first 2 values of loss is 3.1, worse than 3, the median of 3 earlier training "
        "jobs up to there"
    )


@pytest.mark.parametrize("curve", [[5.0, 3.0], [2.9, 9.0], [9.0, 0.0]])
def test_a_trial_that_was_once_as_good_as_the_median_continues(curve):
    assert why_stop(curve, OTHERS, LOSS) == ""


def test_the_median_is_taken_over_the_same_number_of_values():
    assert why_stop([5.0, 3.0], OTHERS, LOSS) == ""
    assert "worse than 2.66667" in why_stop([5.0, 3.0, 3.0], OTHERS, LOSS)


def test_a_greater_value_is_better_for_a_maximized_objective():
    assert "0.2, worse than 0.4" in why_stop([0.1, 0.2], [[0.3, 0.5], [0.5, 0.7], [0.1, 0.3]], ACCURACY)
    assert why_stop([0.1, 0.4], [[0.3, 0.5], [0.5, 0.7], [0.1, 0.3]], ACCURACY) == ""
    assert why_stop([9.0, 9.0], OTHERS, ACCURACY) == ""


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    others = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]
    assert "worse than 2.5, the median of 4" in why_stop([2.6, 2.6], others, LOSS)
    assert why_stop([2.5, 2.6], others, LOSS) == ""


@pytest.mark.parametrize(
    ("curve", "others"),
    [
        ([], OTHERS),
        ([99.0], OTHERS),  # a first value is not judged
        ([99.0, 99.0], []),
        ([99.0, 99.0], OTHERS[:2]),  # a median of two curves is not used
        ([99.0, 99.0], [*OTHERS[:2], [1.0]]),  # the third curve is shorter
        ([99.0] * 4, OTHERS),  # all curves are shorter
    ],
)
def test_too_few_values_or_curves_stop_no_trial(curve, others):
    assert why_stop(curve, others, LOSS) == ""


def test_shorter_curves_are_left_out():
    others = [*OTHERS, [0.0], [0.0], []]
    assert "the median of 3 " in why_stop([9.0, 9.0], others, LOSS)


def test_values_near_the_largest_float_are_compared_correctly():
    huge = [[1.7e308, 1.7e308]] * 3
    assert why_stop([1.0, 1.0], huge, LOSS) == ""
    assert why_stop([1.0, 1.0], huge, ACCURACY)
