"""Adasum: adds gradients pair by pair, each reduced by the part that both have in common.

    adasum(a, b) = (1 - a.b / 2|a|^2) a  +  (1 - a.b / 2|b|^2) b

Orthogonal gradients are added, equal ones averaged. Ranks meet in pairs at distance 1, 2, 4 and so on, so their number
is a power of two; both partners compute the same bits.
Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from __future__ import annotations

import ctypes
from typing import Any

from clary.train._native.interface import Dtype
from clary.train.collective.buffers import Buffer
from clary.train.collective.communicator import Communicator
from clary.train.horovod.errors import HorovodInternalError

_NUMPY_NAMES = {Dtype.FLOAT32: "float32", Dtype.FLOAT64: "float64", Dtype.FLOAT16: "float16"}


def reduce_adasum(group: Communicator, memory: Buffer) -> None:
    """Replace the tensor of each rank by the Adasum of all ranks' tensors.

    Args:
        memory: floating-point values, the same number on all ranks; computed in float64.

    Raises: HorovodInternalError for another type, or if the number of ranks is no power of two; CollectiveError.
    """
    if group.size & (group.size - 1):
        raise HorovodInternalError(
            f"Adasum needs a number of ranks that is a power of two; this group has {group.size}"
        )
    import numpy as np

    mine = _values(np, memory)
    distance = 1
    while distance < group.size:
        peer = group.rank ^ distance
        theirs = np.empty_like(mine)
        received = group.receive(_buffer(theirs), peer, tag=distance)
        group.send(_buffer(mine), peer, tag=distance).wait()
        received.wait()
        mine = combine(mine, theirs) if group.rank < peer else combine(theirs, mine)
        distance *= 2
    _store(np, mine, memory)


def combine(a: Any, b: Any) -> Any:
    """Return the Adasum of two float64 arrays of one shape; if one is all zeros, the result is the other array."""
    dot = float((a * b).sum())
    norm_a, norm_b = float((a * a).sum()), float((b * b).sum())
    part_a = 1.0 - dot / (2.0 * norm_a) if norm_a else 1.0
    part_b = 1.0 - dot / (2.0 * norm_b) if norm_b else 1.0
    return part_a * a + part_b * b


def _buffer(values: Any) -> Buffer:
    return Buffer(int(values.ctypes.data), values.size, Dtype.FLOAT64, True, values)


def _bytes_of(memory: Buffer) -> Any:
    return (ctypes.c_char * memory.num_bytes).from_address(memory.address)


def _values(np: Any, memory: Buffer) -> Any:
    if memory.dtype is Dtype.BFLOAT16:
        halves = np.frombuffer(_bytes_of(memory), dtype=np.uint16).astype(np.uint32) << 16
        return halves.view(np.float32).astype(np.float64)
    if memory.dtype not in _NUMPY_NAMES:
        raise HorovodInternalError(f"Adasum is defined on floating types, got {memory.dtype.name.lower()}")
    return np.frombuffer(_bytes_of(memory), dtype=_NUMPY_NAMES[memory.dtype]).astype(np.float64)


def _store(np: Any, values: Any, memory: Buffer) -> None:
    if memory.dtype is Dtype.BFLOAT16:
        words = values.astype(np.float32).view(np.uint32)
        rounded = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
        np.frombuffer(_bytes_of(memory), dtype=np.uint16)[:] = rounded
        return
    np.frombuffer(_bytes_of(memory), dtype=_NUMPY_NAMES[memory.dtype])[:] = values.astype(_NUMPY_NAMES[memory.dtype])
