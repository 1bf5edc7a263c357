"""The module `_door`: the library's functions, with the same names and numbers as for calls through ctypes."""

import array

import pytest

from clary.train._native import core

door = core.door()
pytestmark = pytest.mark.skipif(door is None, reason="_door was not built: Python's headers or a compiler are missing")


def test_every_function_of_the_door_is_one_that_ctypes_declares():
    functions = {name for name in dir(door) if not name.startswith("_")} - {
        "address_of",
        "sum_memory",
        "gather_memory",
        "sum_scatter_memory",
        "know_tensors",
        "reduce_tensor",
        "broadcast_tensor",
        "gather_tensor",
        "scatter_tensor",
    }
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
        ((0, 0, -1, 0, 0, 0, 0.0, 0), OverflowError),  # number of elements below 0
        ((0, 0, 1, 1 << 31, 0, 0, 0.0, 0), OverflowError),  # a type beyond 32 bits
        ((0, 0, 1, 0, 0, 0, "soon", 0), TypeError),
        ((0, 3.5, 1, 0, 0, 0, 0.0, 0), TypeError),  # an address with a fraction
    ],
)
def test_arguments_of_a_wrong_type_or_range_are_refused_before_the_library_is_called(arguments, error):
    with pytest.raises(error):
        door.all_reduce(1, *arguments)


def test_an_address_is_that_of_the_buffer():
    numbers = array.array("f", [1, 2, 3])
    assert door.address_of(numbers) == numbers.buffer_info()[0]
    assert door.address_of(memoryview(numbers)[1:]) == numbers.buffer_info()[0] + 4
    with pytest.raises(BufferError):
        door.address_of(memoryview(numbers)[::2])
    with pytest.raises(TypeError):
        door.address_of(5)


WHOLE = array.array("f", range(6))


@pytest.mark.parametrize(
    ("chunk", "whole", "size"),
    [
        (array.array("f", [1, 2]), array.array("f", range(5)), 3),  # no room for three chunks
        (array.array("f", [1, 2]), WHOLE, 0),
        (array.array("d", [1]), WHOLE, 3),  # the right number of bytes, but another type
        (array.array("H", [1, 2, 3, 4]), array.array("H", range(12)), 3),  # a type that the core does not support
        (memoryview(WHOLE)[:2], WHOLE, 3),  # overlaps with the whole
        (memoryview(WHOLE)[::3], WHOLE, 3),  # strided
        (5, WHOLE, 3),
        ([1.0, 2.0], WHOLE, 3),
    ],
)
def test_the_short_calls_send_nothing_for_unsuitable_memory(chunk, whole, size):
    assert door.gather_memory(None, chunk, whole, size, 0.0, None) is None
    assert door.sum_scatter_memory(None, whole, chunk, size, 0.0, None) is None


def test_the_short_calls_write_to_no_read_only_memory():
    chunk, whole = array.array("f", [1, 2]), array.array("f", range(6))
    assert door.gather_memory(None, chunk, whole.tobytes(), 3, 0.0, None) is None
    assert door.sum_scatter_memory(None, whole, memoryview(chunk).toreadonly(), 3, 0.0, None) is None


@pytest.mark.parametrize("name", ["gather_memory", "sum_scatter_memory"])
def test_a_short_call_refuses_arguments_of_a_wrong_type(name):
    with pytest.raises(TypeError, match="expected 6 arguments, got 2"):
        getattr(door, name)(0, b"")
    with pytest.raises(TypeError):
        getattr(door, name)(0, array.array("f", [1, 2]), WHOLE, "three", 0.0, 0)
