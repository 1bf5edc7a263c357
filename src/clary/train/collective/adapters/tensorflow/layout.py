"""Offsets of a list of tensors in one block of memory, so that many small tensors are exchanged at once.

Small tensors are copied one after the other to the block's beginning and exchanged as one run, since a copy costs less
than an operation. A large tensor is a run of its own and is read in place. Every tensor begins at a multiple of
ALIGNMENT: TensorFlow uses such memory directly, and copies other memory. Equal sizes give equal layouts, so ranks with
the same tensors exchange the same runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

ALIGNMENT = 64
"""In bytes; EIGEN_MAX_ALIGN_BYTES of TensorFlow's builds."""
LARGE_BYTES = 256 << 10
"""Least size in bytes of a large tensor, whose copy costs more than an operation."""
_KEPT_LAYOUTS = 64


@dataclass(frozen=True)
class Run:
    """A part of the block that is exchanged by one operation.

    Args:
        members: indices of the run's tensors, in their order in the block.
        offset: offset of the run's first byte.
        is_read_in_place: whether the run is one large tensor, which is not copied.
    """

    members: tuple[int, ...]
    offset: int
    num_bytes: int
    is_read_in_place: bool


@dataclass(frozen=True)
class Layout:
    """Offsets of all tensors of a list.

    Args:
        offsets: offset of each tensor's first byte, by its index in the list.
        num_bytes: size of the block.
    """

    offsets: tuple[int, ...]
    runs: tuple[Run, ...]
    num_bytes: int


def lay_out(sizes: Sequence[int]) -> Layout:
    """Return the layout of tensors with these sizes in bytes."""
    return _lay_out(tuple(sizes))


@lru_cache(_KEPT_LAYOUTS)
def _lay_out(sizes: tuple[int, ...]) -> Layout:
    small = [index for index, size in enumerate(sizes) if 0 < size < LARGE_BYTES]
    large = [index for index, size in enumerate(sizes) if size >= LARGE_BYTES]
    offsets = [0] * len(sizes)
    end = 0
    runs = []
    for index in small:
        offsets[index] = end
        end += _aligned(sizes[index])
    if small:
        runs.append(Run(tuple(small), 0, end, False))
    for index in large:
        offsets[index] = end
        runs.append(Run((index,), end, sizes[index], True))
        end += _aligned(sizes[index])
    return Layout(tuple(offsets), tuple(runs), end)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
