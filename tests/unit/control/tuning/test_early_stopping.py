"""The median rule, by examples that are worked out by hand."""

import pytest

from clary.control.tuning.early_stopping import why_stop
from clary.control.tuning.tuning_request import Objective

LOSS = Objective(metric="loss", is_maximized=False)
ACCURACY = Objective(metric="accuracy", is_maximized=True)
# Averages of the first two: 3.5, 2.5, 3.0; their median is 3.0. Of all three: 10/3, 2.0, 8/3.
OTHERS = [[4.0, 3.0, 3.0], [3.0, 2.0, 1.0], [3.5, 2.5, 2.0]]


def test_a_trial_whose_best_is_worse_than_the_median_of_averages_stops():
    assert why_stop([5.0, 3.1], OTHERS, LOSS) == (
        "early stopping: the best of its first 2 values of loss is 3.1, worse than 3, the median of 3 earlier training "
        "jobs up to there"
    )


@pytest.mark.parametrize("curve", [[5.0, 3.0], [2.9, 9.0], [9.0, 0.0]])
def test_a_trial_that_was_ever_as_good_goes_on(curve):
    assert why_stop(curve, OTHERS, LOSS) == ""


def test_the_median_is_that_up_to_the_same_number_of_values():
    assert why_stop([5.0, 3.0], OTHERS, LOSS) == ""
    assert "worse than 2.66667" in why_stop([5.0, 3.0, 3.0], OTHERS, LOSS)


def test_greater_is_better_where_the_objective_is_maximized():
    assert "0.2, worse than 0.4" in why_stop([0.1, 0.2], [[0.3, 0.5], [0.5, 0.7], [0.1, 0.3]], ACCURACY)
    assert why_stop([0.1, 0.4], [[0.3, 0.5], [0.5, 0.7], [0.1, 0.3]], ACCURACY) == ""
    assert why_stop([9.0, 9.0], OTHERS, ACCURACY) == ""


def test_the_median_of_an_even_number_lies_between_two():
    others = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]
    assert "worse than 2.5, the median of 4" in why_stop([2.6, 2.6], others, LOSS)
    assert why_stop([2.5, 2.6], others, LOSS) == ""


@pytest.mark.parametrize(
    ("curve", "others"),
    [
        ([], OTHERS),
        ([99.0], OTHERS),  # a first value says nothing
        ([99.0, 99.0], []),
        ([99.0, 99.0], OTHERS[:2]),  # a median of two says nothing
        ([99.0, 99.0], [*OTHERS[:2], [1.0]]),  # the third has not come so far
        ([99.0] * 4, OTHERS),  # none has
    ],
)
def test_too_little_is_known_to_stop_anything(curve, others):
    assert why_stop(curve, others, LOSS) == ""


def test_shorter_curves_are_left_out():
    others = [*OTHERS, [0.0], [0.0], []]
    assert "the median of 3 " in why_stop([9.0, 9.0], others, LOSS)


def test_values_near_the_greatest_float_are_compared_as_others_are():
    huge = [[1.7e308, 1.7e308]] * 3
    assert why_stop([1.0, 1.0], huge, LOSS) == ""
    assert why_stop([1.0, 1.0], huge, ACCURACY)
