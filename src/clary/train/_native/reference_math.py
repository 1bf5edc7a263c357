"""Reductions in plain Python: the oracle of the compiled kernels, and the arithmetic of the reference core.

Where: `reference` reduces with it; tests compare the compiled core with the `expected_...` functions, bit by bit.

Ranks are combined in rank order, ((r0 op r1) op r2) ... float16 and bfloat16 are widened to float32, accumulated there
and rounded once, to nearest even. Every NaN is written as the quiet NaN without payload. Minimum and maximum follow
IEEE 754-2019: NaN wins, and -0 is less than +0. Integers wrap. A bool is false only if its byte is 0.

float32 is computed in double and rounded after each operation. The results have the bits of float32 arithmetic: for
sums, products and quotients of 24 bit significands, rounding to 53 bits first never changes the result. Source:
Figueroa, "When is double rounding innocuous?", 1995.
"""

from __future__ import annotations

import math
import operator
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence

from clary.train._native.interface import Dtype, ReduceOp

_FORMATS = {
    Dtype.FLOAT32: "f",
    Dtype.FLOAT64: "d",
    Dtype.FLOAT16: "e",
    Dtype.BFLOAT16: "H",
    Dtype.INT8: "b",
    Dtype.INT16: "h",
    Dtype.INT32: "i",
    Dtype.INT64: "q",
    Dtype.UINT8: "B",
    Dtype.BOOL: "B",
}
_HALF_OVERFLOW = 65520.0  # least number that rounds to infinity
_BFLOAT_NAN = 0x7FC0


def expected_all_reduce(inputs: Sequence[bytes], dtype: int, op: int) -> bytes:
    """Return the reduction of one buffer per rank, in rank order; AVG divides by the number of ranks.

    Args:
        inputs: one buffer per rank, in native byte order, of equal length, a multiple of the element's size.
    """
    kind, reduction = Dtype(dtype), ReduceOp(op)
    combine = _combiner(kind, reduction)
    total = _load(inputs[0], kind)
    for values in inputs[1:]:
        total = _rounded(kind, map(combine, total, _load(values, kind)))
    if reduction is ReduceOp.AVG:
        total = _rounded(kind, (value / len(inputs) for value in total))
    return _store(total, kind)


def expected_reduce_scatter(inputs: Sequence[bytes], dtype: int, op: int) -> list[bytes]:
    """Return each rank's chunk of the reduction, by rank.

    Args: as `expected_all_reduce`; the number of elements is also a multiple of the number of ranks.
    """
    whole = expected_all_reduce(inputs, dtype, op)
    return [chunk(whole, rank, len(inputs)) for rank in range(len(inputs))]


def expected_all_to_all(inputs: Sequence[bytes]) -> list[bytes]:
    """Return the bytes that each rank receives, by rank, for chunks of equal length."""
    size = len(inputs)
    return [b"".join(chunk(buffer, rank, size) for buffer in inputs) for rank in range(size)]


def chunk(buffer: bytes, rank: int, size: int) -> bytes:
    """Return a rank's chunk of a buffer with one chunk for each rank.

    Args:
        buffer: `size` chunks of equal length.
        rank: from 0.
        size: number of ranks.
    """
    length = len(buffer) // size
    return buffer[rank * length : (rank + 1) * length]


def _load(buffer: bytes, kind: Dtype) -> list[float] | list[int]:
    raw = struct.unpack(f"{len(buffer) // kind.element_bytes}{_FORMATS[kind]}", buffer)
    if kind is Dtype.BFLOAT16:
        words = array("I", (value << 16 for value in raw))
        return array("f", words.tobytes()).tolist()
    if kind is Dtype.BOOL:
        return [int(value != 0) for value in raw]
    return list(raw)


def _rounded(kind: Dtype, values: Iterable[float] | Iterable[int]) -> list[float] | list[int]:
    """Round values to the accumulator's type: float32 or float64, or an integer that has wrapped."""
    if kind is Dtype.FLOAT64 or kind is Dtype.BOOL:
        return list(values)
    if kind.is_floating:
        return array("f", values).tolist()
    bits = 8 * kind.element_bytes
    if kind is Dtype.UINT8:
        return [int(value) % (1 << bits) for value in values]
    half = 1 << (bits - 1)
    return [(int(value) + half) % (1 << bits) - half for value in values]


def _store(values: list[float] | list[int], kind: Dtype) -> bytes:
    if kind is Dtype.BFLOAT16:
        words = array("I", array("f", values).tobytes())
        narrow = (
            _BFLOAT_NAN if math.isnan(value) else _upper_half(word) for value, word in zip(values, words, strict=True)
        )
        return array("H", narrow).tobytes()
    if kind is Dtype.FLOAT16:
        values = [_clamped(value) for value in values]
    if kind.is_floating:
        values = [math.nan if math.isnan(value) else value for value in values]
    return struct.pack(f"{len(values)}{_FORMATS[kind]}", *values)


def _upper_half(word: int) -> int:
    """Round a float32 to bfloat16, to nearest even, on its bits."""
    return (word + 0x7FFF + (word >> 16 & 1)) >> 16


def _clamped(value: float) -> float:
    """Replace values too large for a float16 by infinity, since `struct` refuses them."""
    return math.copysign(math.inf, value) if abs(value) >= _HALF_OVERFLOW else value


def _combiner(kind: Dtype, op: ReduceOp) -> Callable[..., float]:
    if kind is Dtype.BOOL:
        return _ON_BOOL[op]
    if kind.is_floating and op in (ReduceOp.MIN, ReduceOp.MAX):
        return _float_minimum if op is ReduceOp.MIN else _float_maximum
    return _ON_NUMBERS[op]


def _float_minimum(first: float, second: float) -> float:
    if math.isnan(first) or math.isnan(second):
        return math.nan
    if first == second:  # zeros may differ in sign
        return first if math.copysign(1.0, first) < 0 else second
    return min(first, second)


def _float_maximum(first: float, second: float) -> float:
    return -_float_minimum(-first, -second)


_ON_NUMBERS: dict[ReduceOp, Callable[..., float]] = {
    ReduceOp.SUM: operator.add,
    ReduceOp.AVG: operator.add,
    ReduceOp.MIN: min,
    ReduceOp.MAX: max,
    ReduceOp.PRODUCT: operator.mul,
    ReduceOp.BAND: operator.and_,
    ReduceOp.BOR: operator.or_,
    ReduceOp.BXOR: operator.xor,
}
_ON_BOOL: dict[ReduceOp, Callable[..., float]] = {
    ReduceOp.SUM: operator.or_,
    ReduceOp.MIN: operator.and_,
    ReduceOp.MAX: operator.or_,
    ReduceOp.PRODUCT: operator.and_,
    ReduceOp.BAND: operator.and_,
    ReduceOp.BOR: operator.or_,
    ReduceOp.BXOR: operator.xor,
}
