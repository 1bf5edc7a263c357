"""Lists of arrays over a group: their operations, and the check that all ranks pass equal lists."""

import numpy as np
import pytest

from clary.train._native.errors import OrderMismatch
from clary.train._native.interface import ReduceOp
from clary.train.collective.adapters.tensorflow.layout import LARGE_BYTES
from clary.train.collective.adapters.tensorflow.lists import Lists


class FakeWorld:
    """Reduces with a second rank that has the same arrays; sends nothing."""

    rank, size = 0, 2

    def __init__(self, other_digest=None):
        self.calls = []
        self.aborted = ""
        self.communicator = self
        self._other = other_digest

    def allgather(self, array):
        self.calls.append("allgather")
        return np.stack([array, array if self._other is None else self._other])

    def all_reduce(self, array, op, out):
        self.calls.append(("all_reduce", array.nbytes, array is out))
        out[...] = array * 2
        return out

    def bcast(self, array, root):
        self.calls.append(("bcast", array.nbytes, root))
        return array

    def abort(self, reason):
        self.aborted = reason


def test_small_arrays_of_a_type_travel_together_and_large_ones_from_where_they_lie():
    world = FakeWorld()
    large = np.ones(LARGE_BYTES // 4, np.float32)
    arrays = [np.float32([1, 2]), np.int64([[3]]), large, np.float32(4), np.zeros((0, 3), np.float32)]
    results = Lists(world).reduce(arrays, ReduceOp.SUM)
    assert world.calls == [
        "allgather",
        ("all_reduce", 128, True),
        ("all_reduce", LARGE_BYTES, False),
        ("all_reduce", 64, True),
    ]
    for array, result in zip(arrays, results, strict=True):
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        assert np.array_equal(result, array * 2)
    assert np.array_equal(arrays[0], [1, 2]), "what was passed is not written"


def test_a_list_is_compared_once():
    world = FakeWorld()
    lists = Lists(world)
    for _ in range(3):
        lists.reduce([np.ones(3, np.float32)], ReduceOp.SUM)
    lists.reduce([np.ones(3, np.float32)], ReduceOp.MAX)
    lists.broadcast([np.ones(3, np.float32)], 0)
    assert world.calls.count("allgather") == 3


def test_a_list_that_differs_ends_the_group_before_anything_is_sent():
    world = FakeWorld(other_digest=np.int64([7]))
    with pytest.raises(OrderMismatch, match=r"rank 0 calls reduce by sum: float32\[3\]; ranks \[1\] .* have all ranks"):
        Lists(world).reduce([np.ones(3, np.float32)], ReduceOp.SUM)
    assert world.calls == ["allgather"]
    assert "float32[3]" in world.aborted


def test_a_broadcast_sends_bytes_of_any_type_and_leaves_what_was_passed():
    world = FakeWorld()
    array = np.array([1 + 2j])
    (result,) = Lists(world).broadcast([array], 0)
    assert world.calls == ["allgather", ("bcast", 64, 0)]
    assert np.array_equal(result, array)
    assert not np.shares_memory(result, array)
