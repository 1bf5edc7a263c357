"""Checks of a `communicator`'s arguments: counts, types and reductions.

Where: `communicator` calls these functions before it sends data. A check that fails raises TypeError or ValueError,
with the expected and the given value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clary.train._native.interface import Dtype, ReduceOp
from clary.train.collective.buffers import Buffer, buffer_of, buffers_of, check_apart


def in_and_out(source: Any, target: Any, dtype: Dtype | None) -> tuple[Buffer, Buffer]:
    """Return an input and an output buffer of one type and length; the same buffer for an operation in place.

    Args:
        source: memory that `buffer_of` accepts.
        target: memory that `buffer_of` accepts; None for in place, which requires a writable `source`.
        dtype: element type of both; None to derive it from their formats.
    """
    read = buffer_of(source, name="source", dtype=dtype, is_output=target is None)
    if target is None:
        return read, read
    written = buffer_of(target, name="target", dtype=dtype, is_output=True)
    check_same_type(read, written)
    check_length(written, read.num_elements, "target")
    check_apart((read,), (written,), may_be_equal=True)
    return read, written


def chunks_like(one: Buffer, memories: Any, size: int, *, name: str, is_output: bool = False) -> list[Buffer]:
    """Return one buffer that holds `size` chunks like `one`, or `size` buffers like it.

    Args:
        one: buffer with the type and length of a chunk.
        memories: one object with all chunks, or a list with one object per rank.
        size: number of ranks.
        name: name of the argument, for errors.
        is_output: whether they will be written.
    """
    found = buffers_of(memories, size, name=name, dtype=one.dtype, is_output=is_output)
    if isinstance(found, Buffer):
        check_length(found, size * one.num_elements, name)
        return [found]
    for rank, chunk in enumerate(found):
        check_length(chunk, one.num_elements, f"{name}[{rank}]")
    return found


def uneven_chunks(
    memories: Any,
    counts: Sequence[int] | None,
    size: int,
    *,
    name: str,
    dtype: Dtype | None = None,
    is_output: bool = False,
) -> tuple[list[Buffer], list[int]]:
    """Return buffers like those of `chunks_like`, and the number of elements for each rank.

    Args:
        memories: one object with all chunks, or a list with one object per rank.
        counts: elements for each rank; None for equal chunks; ignored for a list.
        size: number of ranks.
        name: name of the argument, for errors.
        dtype: element type; None to derive it from the format.
        is_output: whether they will be written.
    Raises: ValueError for counts that do not fit the memory; otherwise as `buffers_of`.
    """
    found = buffers_of(memories, size, name=name, dtype=dtype, is_output=is_output)
    if not isinstance(found, Buffer):
        for chunk in found:
            check_same_type(found[0], chunk)
        return found, [chunk.num_elements for chunk in found]
    if counts is None:
        if found.num_elements % size:
            raise ValueError(f"{name} has {found.num_elements} elements, no multiple of {size} ranks: pass counts")
        return [found], [found.num_elements // size] * size
    if len(counts) != size or min(counts) < 0:
        raise ValueError(f"counts of {name} are {list(counts)}; expected {size} numbers, none below 0")
    check_length(found, sum(counts), name)
    return [found], list(counts)


def addresses(buffers: Sequence[Buffer]) -> tuple[int, list[int] | None]:
    """Return the addresses for a core: one address for one buffer, else one per rank; 0 without buffers."""
    if not buffers:
        return 0, None
    if len(buffers) == 1:
        return buffers[0].address, None
    return 0, [buffer.address for buffer in buffers]


def reduction_of(op: ReduceOp | str, dtype: Dtype) -> ReduceOp:
    """Parse a reduction and check that it is defined on elements of `dtype`.

    Raises: ValueError for an unknown reduction, TypeError for a reduction that is not defined on `dtype`.
    """
    if op is ReduceOp.SUM:
        return op
    try:
        reduction = ReduceOp[op.upper()] if isinstance(op, str) else ReduceOp(op)
    except (KeyError, ValueError):
        names = ", ".join(known.name.lower() for known in ReduceOp)
        raise ValueError(f"op is {op!r}; expected one of {names}") from None
    if not reduction.is_defined_on(dtype):
        raise TypeError(
            f"{reduction.name.lower()} is not defined on {dtype.name.lower()}: avg is for floating types, band, bor "
            f"and bxor for integers and bool"
        )
    return reduction


def check_same_type(one: Buffer, other: Buffer) -> None:
    """Refuse buffers of different types."""
    if one.dtype is not other.dtype:
        raise TypeError(
            f"buffers hold {one.dtype.name.lower()} and {other.dtype.name.lower()}: nothing is converted, make them "
            f"equal"
        )


def check_length(buffer: Buffer, num_elements: int, name: str) -> None:
    """Refuse a buffer of another length.

    Args:
        num_elements: expected number of elements.
        name: name of the argument, for the error.
    Raises: ValueError.
    """
    if buffer.num_elements != num_elements:
        raise ValueError(f"{name} has {buffer.num_elements} elements, expected {num_elements}")
