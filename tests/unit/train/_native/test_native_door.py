"""The module `_door`: the library's functions by the same names and numbers as ctypes calls them."""

import array

import pytest

from clary.train._native import core

door = core.door()
pytestmark = pytest.mark.skipif(door is None, reason="_door was not built: Python's headers or a compiler are missing")


def test_every_function_of_the_door_is_one_that_ctypes_declares():
    functions = {name for name in dir(door) if not name.startswith("_")} - {"address_of", "sum_memory"}
    assert functions <= set(core._SIGNATURES)
    assert {"all_reduce", "wait", "broadcast"} <= functions


@pytest.mark.parametrize("name", sorted(set(dir(door)) & set(core._SIGNATURES)))
def test_a_call_with_too_few_arguments_is_refused_with_their_number(name):
    wanted = 1 + len(core._SIGNATURES[name][1])
    with pytest.raises(TypeError, match=f"expected {wanted} arguments, got 1"):
        getattr(door, name)(0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 0, -1, 0, 0, 0, 0.0, 0), OverflowError),  # elements below 0
        ((0, 0, 1, 1 << 31, 0, 0, 0.0, 0), OverflowError),  # a type beyond 32 bits
        ((0, 0, 1, 0, 0, 0, "soon", 0), TypeError),
        ((0, 3.5, 1, 0, 0, 0, 0.0, 0), TypeError),  # an address with a fraction
    ],
)
def test_what_is_no_number_of_its_kind_is_refused_before_the_library_is_called(arguments, error):
    with pytest.raises(error):
        door.all_reduce(1, *arguments)


def test_an_address_is_that_of_the_memory():
    numbers = array.array("f", [1, 2, 3])
    assert door.address_of(numbers) == numbers.buffer_info()[0]
    assert door.address_of(memoryview(numbers)[1:]) == numbers.buffer_info()[0] + 4
    with pytest.raises(BufferError):
        door.address_of(memoryview(numbers)[::2])
    with pytest.raises(TypeError):
        door.address_of(5)
