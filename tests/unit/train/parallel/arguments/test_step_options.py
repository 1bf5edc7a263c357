"""The function and the options of `smp.step`: by name, and in the documented order."""

import numpy as np
import pytest

from clary.train.parallel.arguments.step_options import read_options


def run() -> None:
    """Stands for the function of a step."""


def test_a_function_alone_has_no_options() -> None:
    assert read_options([run], None, None) == (run, (), {})


def test_a_call_without_arguments_waits_for_the_function() -> None:
    assert read_options([], None, None) == (None, (), {})


def test_options_are_read_in_the_documented_order() -> None:
    assert read_options([["labels"]], None, None) == (None, ["labels"], {})
    assert read_options([["labels"], {"images": 1}], None, None) == (None, ["labels"], {"images": 1})
    assert read_options([None, {"images": 1}], None, None) == (None, (), {"images": 1})


def test_options_are_read_by_name_and_beside_the_function() -> None:
    assert read_options([], ["labels"], {"images": 1}) == (None, ["labels"], {"images": 1})
    assert read_options([["labels"]], None, {"images": 1}) == (None, ["labels"], {"images": 1})
    assert read_options([run], {"labels"}, None) == (run, {"labels"}, {})


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(TypeError, match="non_split_inputs was given by its place and by its name"):
        read_options([["labels"]], ["labels"], None)


def test_more_options_by_place_than_are_documented_are_refused() -> None:
    with pytest.raises(TypeError, match=r"got 3 options by their place.*give the others by name"):
        read_options([["labels"], {}, True], None, None)


@pytest.mark.parametrize("names", ["labels", 23, [23]])
def test_other_values_than_names_are_refused_at_once(names: object) -> None:
    with pytest.raises(TypeError, match=r"non_split_inputs is .*expected a list of names"):
        read_options([names], None, None)
    with pytest.raises(TypeError, match=r"non_split_inputs is .*expected a list of names"):
        read_options([], names, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("axes", [["images"], 1, {"images": "1"}, {1: 1}])
def test_other_values_than_axes_by_name_are_refused_at_once(axes: object) -> None:
    with pytest.raises(TypeError, match=r"input_split_axes is .*expected a dict"):
        read_options([[], axes], None, None)


def test_axes_may_be_numbers_of_numpy() -> None:
    _, _, axes = read_options([], None, {"images": np.int64(1), "labels": True})  # type: ignore[dict-item]
    assert axes == {"images": 1, "labels": 1}
    assert all(type(axis) is int for axis in axes.values())


@pytest.mark.parametrize("axis", [1.0, np.float64(1), None])
def test_axes_that_are_no_whole_numbers_are_refused(axis: object) -> None:
    with pytest.raises(TypeError, match=r"input_split_axes is .*expected a dict"):
        read_options([], None, {"images": axis})  # type: ignore[dict-item]
