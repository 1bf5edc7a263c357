"""The free and allocated parts of a file.

Where: `spill` allocates and frees extents. This module touches no file; one thread at a time calls it.

Allocation is first-fit, so the file grows only if no free extent is large enough.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

ALIGNMENT = 4096  # bytes; a page of the page cache, so that no two extents share one


@dataclass(frozen=True, order=True)
class Extent:
    """A range of bytes of a file, from `offset`."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the extent."""
        return self.offset + self.size


class Extents:
    """The free and allocated parts of one file."""

    def __init__(self) -> None:
        self.end = 0  # offset of the file's end, in bytes
        self._free: list[Extent] = []  # free extents by offset, no two of them adjacent

    @property
    def taken_bytes(self) -> int:
        """Number of allocated bytes, rounded up to pages."""
        return self.end - sum(extent.size for extent in self._free)

    def take(self, size: int) -> Extent:
        """Allocate an extent of `size` bytes, rounded up to pages; the file may have to grow to the extent's `end`.

        Raises: ValueError if `size` is below 1.
        """
        if size < 1:
            raise ValueError(f"an extent of {size} bytes; expected 1 or more")
        size = -(-size // ALIGNMENT) * ALIGNMENT
        for place, extent in enumerate(self._free):
            if extent.size >= size:
                rest = Extent(extent.offset + size, extent.size - size)
                self._free[place : place + 1] = [rest] if rest.size else []
                return Extent(extent.offset, size)
        grows_last = bool(self._free) and self._free[-1].end == self.end
        offset = self._free.pop().offset if grows_last else self.end
        self.end = offset + size
        return Extent(offset, size)

    def give_back(self, extent: Extent) -> None:
        """Free an extent that `take` returned; the file keeps its length."""
        place = bisect.bisect(self._free, extent)
        if place < len(self._free) and extent.end == self._free[place].offset:
            extent = Extent(extent.offset, extent.size + self._free.pop(place).size)
        if place and self._free[place - 1].end == extent.offset:
            before = self._free.pop(place - 1)
            extent = Extent(before.offset, before.size + extent.size)
            place -= 1
        self._free.insert(place, extent)
