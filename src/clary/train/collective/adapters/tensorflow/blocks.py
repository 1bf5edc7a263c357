"""Aligned blocks of memory, reused once no array refers to them.

Fresh memory of the size of a model's gradients costs a page fault for every 4 KiB, more than the copies that blocks
save. Results are views that keep their block alive; a block without views is reused, so a training run has one block
for each step whose results it keeps.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from clary.train.collective.adapters.tensorflow.layout import ALIGNMENT

_MAX_BLOCKS = 8
"""Most blocks that are kept, of all sizes together."""
_OWN_REFERENCES = 2
"""References to an unused array: one of the list, one of the call that counts references."""


class Blocks:
    """Blocks of one process; any thread may call `take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memories: list[np.ndarray] = []

    def take(self, num_bytes: int) -> np.ndarray:
        """Return an unused block, shape [num_bytes] of uint8; its content is undefined.

        The block stays in use as long as the result or a view of it exists.
        """
        with self._lock:
            memory = self._free_one(num_bytes)
            if memory is None:
                memory = np.zeros(num_bytes + ALIGNMENT, np.uint8)
                self._forget_oldest()
                self._memories.append(memory)
        start = -int(memory.ctypes.data) % ALIGNMENT
        return memory[start : start + num_bytes]

    def _free_one(self, num_bytes: int) -> np.ndarray | None:
        for place in range(len(self._memories)):
            is_free = sys.getrefcount(self._memories[place]) == _OWN_REFERENCES  # views keep a reference
            if is_free and self._memories[place].size == num_bytes + ALIGNMENT:
                return self._memories[place]
        return None

    def _forget_oldest(self) -> None:
        """Drop the oldest blocks over the limit; a block with views lives as long as its views."""
        while len(self._memories) >= _MAX_BLOCKS:
            self._memories.pop(0)
