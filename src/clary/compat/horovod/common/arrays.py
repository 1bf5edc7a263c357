"""Requests on NumPy arrays, for the frameworks whose tensors are accessed through NumPy: TensorFlow and MXNet.

Arrays are C-contiguous. Names, sizes and ranks are looked up when an operation runs, so that a graph stays valid after
a change of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clary.train._native.interface import Dtype
from clary.train.collective.buffers import Buffer
from clary.train.horovod import world
from clary.train.horovod.errors import HorovodInternalError
from clary.train.horovod.requests import Description, Reduction, Request

DTYPES = {
    "float32": Dtype.FLOAT32,
    "float64": Dtype.FLOAT64,
    "float16": Dtype.FLOAT16,
    "bfloat16": Dtype.BFLOAT16,
    "int8": Dtype.INT8,
    "int16": Dtype.INT16,
    "int32": Dtype.INT32,
    "int64": Dtype.INT64,
    "uint8": Dtype.UINT8,
    "bool": Dtype.BOOL,
}
_AS_BITS = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}  # for operations that only move data
_TWO_BYTES = 2  # size of float16 and bfloat16


@dataclass(frozen=True)
class Call:
    """The arguments that identify one operation.

    Args:
        name: equal on all ranks; None: a name is made for each run, from the order of the operations without a name.
        process_set: number of the process set.
        is_group: whether the operation waits until all of its arrays are ready on all ranks.
    """

    name: str | None = None
    process_set: int = world.GLOBAL_SET
    is_group: bool = False

    @property
    def nameless(self) -> Call:
        """A copy without a name, for a related operation such as the gradient."""
        return replace(self, name=None)

    def named(self, verb: str, count: int) -> tuple[str, list[str], bool]:
        """Return the name of the operation, a name for each of its arrays, and whether the names were made up."""
        is_nameless = self.name is None
        base = world.engine(self.process_set).make_name(verb) if is_nameless else f"{verb}.{self.name}"
        single = count == 1 and not self.is_group
        return base, [base] if single else [f"{base}_{place + 1}of{count}" for place in range(count)], is_nameless

    def group(self, base: str, count: int) -> tuple[str, int]:
        """Return the name and size of the operation's group, for its `Description`."""
        return (base, count) if self.is_group else ("", 0)

    def run(self, requests: Sequence[Request]) -> None:
        """Submit requests, and wait until all have ended. Raises: HorovodInternalError."""
        if requests:
            engine = world.engine(self.process_set)
            engine.submit(requests, wakes_thread=False)
            engine.wait([request.handle for request in requests])


@dataclass(frozen=True)
class Scaling:
    """A reduction and the factors before and after it."""

    op: Reduction
    before: float = 1.0
    after: float = 1.0

    def divided(self, dtype: np.dtype, process_set: int) -> tuple[Reduction, float]:
        """Return the reduction to run and the factor after it: an average of integers is a sum, divided afterwards."""
        if self.op is Reduction.AVERAGE and dtype.kind in "iub":
            return Reduction.SUM, self.after / len(world.ranks_of(process_set))
        return self.op, self.after


class Room:
    """Memory of a result whose number of rows is known only when the operation runs.

    Args:
        like: array with the type of the result, and with its lengths after the first axis.
        factor: multiplies the result.
        take: allocates an array of uint8 with the given number of bytes.
    """

    def __init__(self, like: np.ndarray, factor: float = 1.0, *, take: Callable[[int], np.ndarray]) -> None:
        self._like = like
        self._factor = factor
        self._take = take
        self._memory: np.ndarray | None = None
        self.counts: list[int] = []

    def allocate(self, rows: int) -> Buffer:
        """Return memory for a number of rows."""
        shape = (rows, *self._like.shape[1:])
        num_bytes = int(np.prod(shape, dtype=np.int64)) * self._like.itemsize
        self._memory = self._take(num_bytes).view(self._like.dtype).reshape(shape)
        return buffer_of(as_bits(self._memory))

    def take_counts(self, counts: list[int]) -> None:
        """Keep the number of rows that each rank sends."""
        self.counts = counts

    def finish(self) -> None:
        """Scale the result."""
        if self._memory is not None and self._factor != 1.0:
            self._memory[...] = scaled(self._memory, self._factor)

    def result(self) -> np.ndarray:
        """Return the result, of shape [rows, ...], once the operation has ended. Raises: HorovodInternalError."""
        if self._memory is None:
            raise HorovodInternalError("the operation has left no result")
        return self._memory

    def request(self, name: str, what: Description, rows: np.ndarray, *, is_nameless: bool) -> Request:
        """Return the request that writes its result to this memory.

        Args:
            name: name of the operation.
            what: description of the operation.
            rows: array to send, not a scalar.
            is_nameless: whether the name was made up.
        """
        return Request(
            name,
            what,
            buffer_of(rows),
            allocate=self.allocate,
            row_elements=int(np.prod(rows.shape[1:], dtype=np.int64)),
            rows=rows.shape[0],
            is_nameless=is_nameless,
            finish=self.finish,
        )


def counts_of(rows: int, splits: Sequence[int] | None, num_ranks: int) -> list[int]:
    """Return the rows for each rank of an all-to-all.

    Args:
        rows: number of rows of the array to send.
        splits: rows for each rank; None splits the rows equally.
        num_ranks: number of ranks of the process set.

    Raises: ValueError for splits that do not fit.
    """
    if splits is None:
        if rows % num_ranks:
            raise ValueError(f"alltoall without splits: {rows} rows are no multiple of {num_ranks} ranks")
        return [rows // num_ranks] * num_ranks
    counts = [int(count) for count in splits]
    if len(counts) != num_ranks or min(counts) < 0 or sum(counts) > rows:
        raise ValueError(f"splits {counts}: expected {num_ranks} counts of 0 or more, together at most {rows} rows")
    return counts


def root_index(root_rank: int, process_set: int) -> int:
    """Return the index of a broadcast's root within its process set.

    Raises: HorovodInternalError for a rank outside of the process set.
    """
    ranks = world.ranks_of(process_set)
    if root_rank not in ranks:
        raise HorovodInternalError(f"broadcast: root rank {root_rank} is not among the ranks {list(ranks)}")
    return ranks.index(root_rank)


def scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """Return the array times a factor, for integer types rounded towards zero; the array itself for factor 1.

    Integers are multiplied in float64, 2-byte floating types in float32, as Horovod does on a CPU.
    """
    if factor == 1.0:
        return array
    if array.dtype.kind in "iub":
        return np.trunc(array.astype(np.float64) * factor).astype(array.dtype)
    wide = np.float32 if array.dtype.itemsize == _TWO_BYTES else array.dtype.type
    return np.asarray((array.astype(wide) * wide(factor)).astype(array.dtype))


def scaling_in_place(array: np.ndarray, factor: float) -> Callable[[], None] | None:
    """Return a function that multiplies an array by a factor; None for factor 1."""
    if factor == 1.0:
        return None

    def scale() -> None:
        array[...] = scaled(array, factor)

    return scale


def as_bits(array: np.ndarray) -> np.ndarray:
    """Return a view of an array in a type that the engine supports, for operations that only move data."""
    kind = _AS_BITS.get(array.dtype.name)
    return array if kind is None else array.view(kind)


def dtype_of(array: np.ndarray) -> Dtype:
    """Return the type of an array's elements. Raises: ValueError for an unsupported element type."""
    dtype = DTYPES.get(array.dtype.name)
    if dtype is None:
        raise ValueError(f"arrays of type {array.dtype.name} cannot be sent: cast to one of {', '.join(DTYPES)}")
    return dtype


def buffer_of(array: np.ndarray) -> Buffer:
    """Describe the memory of a contiguous array. Raises: ValueError for an unsupported element type."""
    address: int = array.__array_interface__["data"][0]
    return Buffer(address, array.size, dtype_of(array), True, array)
