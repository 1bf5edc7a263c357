"""Conversion of a file's bytes to numpy arrays, and their reductions. The import of this module imports numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_BFLOAT16_SHIFT = 16  # a bfloat16 is the upper half of a float32


def to_array(values: bytes, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return values as a writable array.

    Args:
        values: bytes, little-endian.
        dtype: type in the file, a key of ITEM_BYTES; bfloat16 becomes float32.
        shape: shape of the array.
    """
    if dtype == "bfloat16":
        halves = np.frombuffer(values, dtype="<u2").astype("<u4")
        return (halves << _BFLOAT16_SHIFT).view("<f4").reshape(shape)
    return np.frombuffer(values, dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape).copy()


def reduce(values: Any, name: str) -> Any:
    """Return one reduction of an array; NaN for an empty array."""
    if not values.size:
        return np.float64("nan")
    numbers = values if values.dtype.kind in "fc" and values.dtype.itemsize > 2 else values.astype(np.float64)
    if name.startswith("abs_") or numbers.dtype.kind == "c":
        numbers = np.abs(numbers)
    return np.float64(_REDUCE[name.removeprefix("abs_")](numbers))


_REDUCE: dict[str, Callable[[Any], Any]] = {
    "min": np.min,
    "max": np.max,
    "mean": np.mean,
    "std": np.std,
    "variance": np.var,
    "sum": np.sum,
    "prod": np.prod,
    "l1": lambda numbers: np.abs(numbers).sum(),
    "l2": lambda numbers: np.sqrt(np.square(np.abs(numbers)).sum()),
}
