"""Ranges of hyperparameters: values as text and back, scalings, and the number of points."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning_spaces import categoricals, continuous, integers, small_spaces

from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Scaling, num_values, scaling_of

HALF = Continuous(name="c", least=0.5, greatest=1.5, scaling=Scaling.LINEAR)
FEW = Integer(name="i", least=-2, greatest=3, scaling=Scaling.LINEAR)


@given(one=continuous(), part=st.floats(0, 1))
def test_a_continuous_value_is_parsed_back_to_the_same_float(one, part):
    value = min(one.greatest, max(one.least, one.least + part * (one.greatest - one.least)))
    assert one.value(one.text(value)) == value


@given(one=integers(most=2**70), data=st.data())
def test_an_integer_is_parsed_back_to_the_same_number_however_large(one, data):
    value = data.draw(st.integers(one.least, one.greatest))
    assert one.text(value) == str(value)
    assert one.value(one.text(value)) == value


@given(one=categoricals())
def test_a_category_is_its_own_text(one):
    for value in one.values:
        assert one.value(one.text(value)) == value
    assert one.value("no such value") is None


@pytest.mark.parametrize("text", ["0.49", "1.51", "nan", "inf", "-inf", "", "one", "1e999"])
def test_an_invalid_text_of_a_continuous_range_gives_none(text):
    assert HALF.value(text) is None


def test_the_bounds_are_included_in_a_range():
    assert (HALF.value("0.5"), HALF.value("1.50")) == (0.5, 1.5)
    assert (FEW.value("-2"), FEW.value("3")) == (-2, 3)


@pytest.mark.parametrize("text", ["-3", "4", "1.5", "nan", "inf", "", "two"])
def test_an_invalid_text_of_an_integer_range_gives_none(text):
    assert FEW.value(text) is None


@pytest.mark.parametrize(("text", "value"), [("2.0", 2), ("2e0", 2), ("-0", 0), (" 1 ", 1)])
def test_an_integer_may_be_written_as_a_float(text, value):
    assert FEW.value(text) == value
    assert isinstance(FEW.value(text), int)


@pytest.mark.parametrize("word", ["", "Auto"])
@pytest.mark.parametrize("exponent", range(12))
@pytest.mark.parametrize("head", [1, 2, 3, 5, 7])
def test_auto_is_logarithmic_from_two_orders_of_magnitude_on(word, exponent, head):
    least, greatest = float(f"{head}e-{exponent}"), float(f"{head * 100}e-{exponent}")
    assert scaling_of(word, least=least, greatest=greatest) is Scaling.LOGARITHMIC
    assert scaling_of(word, least=least, greatest=greatest * 0.99) is Scaling.LINEAR


@pytest.mark.parametrize(
    ("least", "greatest"),
    [(0.0, 1.0), (-1.0, 1000.0), (1.0, 99.0), (5.0, 5.0), (math.nan, 1.0), (1.0, math.nan), (2.0, 1.0), (1.0, -1.0)],
)
def test_auto_is_linear_for_other_ranges(least, greatest):
    assert scaling_of("Auto", least=least, greatest=greatest) is Scaling.LINEAR


def test_bounds_of_any_size_have_a_scaling():
    assert scaling_of("Auto", least=1, greatest=10**400) is Scaling.LOGARITHMIC
    assert scaling_of("Auto", least=5e-324, greatest=1.7e308) is Scaling.LOGARITHMIC
    assert scaling_of("Auto", least=1.0, greatest=math.inf) is Scaling.LOGARITHMIC


def test_an_explicit_scaling_is_used():
    for scaling in Scaling:
        assert scaling_of(scaling.value, least=1, greatest=1000) is scaling


@given(space=small_spaces())
def test_a_finite_space_has_the_product_of_its_ranges(space):
    choices = [
        one.values
        if isinstance(one, Categorical)
        else [one.least]
        if isinstance(one, Continuous)
        else range(one.least, one.greatest + 1)
        for one in space
    ]
    assert num_values(space) == len(list(itertools.product(*choices)))


def test_a_space_with_a_continuous_range_is_not_finite():
    assert num_values((FEW, HALF)) is None
    assert num_values(()) == 1
