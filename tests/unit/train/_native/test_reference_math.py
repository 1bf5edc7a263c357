"""The oracle of reductions, compared with hand-calculated values and with exact arithmetic."""

import math
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.train._native.interface import Dtype, ReduceOp
from clary.train._native.reference_math import expected_all_reduce, expected_all_to_all, expected_reduce_scatter

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def reduce(code, dtype, op, *rank_values):
    inputs = [struct.pack(f"{len(values)}{code}", *values) for values in rank_values]
    result = expected_all_reduce(inputs, dtype, op)
    return list(struct.unpack(f"{len(rank_values[0])}{code}", result))


@pytest.mark.parametrize(
    ("code", "dtype", "op", "first", "second", "expected"),
    [
        ("i", Dtype.INT32, ReduceOp.SUM, 2**31 - 1, 1, -(2**31)),
        ("b", Dtype.INT8, ReduceOp.PRODUCT, 100, 3, 44),
        ("B", Dtype.UINT8, ReduceOp.SUM, 200, 100, 44),
        ("q", Dtype.INT64, ReduceOp.MAX, -5, 3, 3),
        ("h", Dtype.INT16, ReduceOp.MIN, -5, 3, -5),
        ("i", Dtype.INT32, ReduceOp.BAND, 0b1100, -1, 0b1100),
        ("i", Dtype.INT32, ReduceOp.BXOR, 0b1100, 0b1010, 0b0110),
        ("B", Dtype.UINT8, ReduceOp.BOR, 0b1100, 0b1010, 0b1110),
        ("B", Dtype.BOOL, ReduceOp.SUM, 7, 0, 1),
        ("B", Dtype.BOOL, ReduceOp.BXOR, 7, 1, 0),
        ("B", Dtype.BOOL, ReduceOp.MIN, 7, 2, 1),
        ("d", Dtype.FLOAT64, ReduceOp.AVG, 1.0, 2.0, 1.5),
        ("f", Dtype.FLOAT32, ReduceOp.SUM, 3e38, 3e38, math.inf),
        ("f", Dtype.FLOAT32, ReduceOp.SUM, 2.0**24, 1.0, 2.0**24),
        ("e", Dtype.FLOAT16, ReduceOp.SUM, 65504.0, 16.0, math.inf),
        ("e", Dtype.FLOAT16, ReduceOp.SUM, 65504.0, 15.0, 65504.0),
        ("H", Dtype.BFLOAT16, ReduceOp.SUM, 0x3F80, 0x3B80, 0x3F80),  # 1 + 2^-8: a tie, rounded to even
        ("H", Dtype.BFLOAT16, ReduceOp.SUM, 0x3F81, 0x3B80, 0x3F82),  # 1 + 2^-7 + 2^-8: a tie, rounded to even
        ("H", Dtype.BFLOAT16, ReduceOp.MAX, 0x7F80, 0xFFC1, 0x7FC0),  # a NaN wins and becomes the canonical NaN
    ],
)
def test_reductions_of_two_ranks(code, dtype, op, first, second, expected):
    assert reduce(code, dtype, op, [first], [second]) == [expected]


def test_half_precision_is_rounded_once_at_the_end():
    tiny = 2.0**-11  # half a unit in the last place of 1.0
    assert reduce("e", Dtype.FLOAT16, ReduceOp.SUM, [1.0], [tiny], [tiny]) == [1.0 + 2 * tiny]


def test_ranks_are_added_in_rank_order():
    assert reduce("d", Dtype.FLOAT64, ReduceOp.SUM, [1e16], [-1e16], [1.0]) == [1.0]
    assert reduce("d", Dtype.FLOAT64, ReduceOp.SUM, [1.0], [1e16], [-1e16]) == [0.0]


@pytest.mark.parametrize(("op", "sign"), [(ReduceOp.MIN, -1.0), (ReduceOp.MAX, 1.0)])
def test_minimum_and_maximum_order_zeros_by_sign_and_propagate_nan(op, sign):
    for first, second in ((0.0, -0.0), (-0.0, 0.0)):
        (result,) = reduce("f", Dtype.FLOAT32, op, [first], [second])
        assert math.copysign(1.0, result) == sign
    assert math.isnan(reduce("f", Dtype.FLOAT32, op, [math.nan], [1.0])[0])
    assert math.isnan(reduce("f", Dtype.FLOAT32, op, [1.0], [math.nan])[0])


def nearest_float32(value):
    """Round an exact number to the nearest float32, ties to even, with integers only."""
    if value == 0:
        return Fraction(0)
    magnitude = abs(value)
    exponent = max(math.floor(math.log2(magnitude)), -126)
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while exponent > -126 and magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    return round(value / unit) * unit


@given(st.lists(FLOATS, min_size=3, max_size=3))
def test_float32_sums_and_averages_are_those_of_exact_arithmetic_rounded_at_each_step(values):
    total = Fraction(values[0])
    for value in values[1:]:
        total = nearest_float32(total + Fraction(value))
        if abs(total) >= Fraction(2) ** 128:
            return
    assert Fraction(reduce("f", Dtype.FLOAT32, ReduceOp.SUM, *([v] for v in values))[0]) == total
    average = reduce("f", Dtype.FLOAT32, ReduceOp.AVG, *([v] for v in values))[0]
    assert Fraction(average) == nearest_float32(total / 3)


def test_reduce_scatter_and_all_to_all_give_each_rank_its_chunks():
    assert expected_reduce_scatter([bytes([1, 2]), bytes([10, 20])], Dtype.UINT8, ReduceOp.SUM) == [b"\x0b", b"\x16"]
    assert expected_all_to_all([b"abcd", b"efgh"]) == [b"abef", b"cdgh"]
