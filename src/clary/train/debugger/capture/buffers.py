"""Host memory into which steps are copied. It is reused, since fresh memory costs more than the copy.

There are two pieces, so that one is filled while the other is written; their number bounds how far writing may lag. If
both are still being written, the next step waits up to a limit, and then it is dropped.
"""

from __future__ import annotations

import ctypes
import queue
from typing import Any

import torch

from clary.train.debugger.tensor_files import ALIGNMENT

NUM_PIECES = 2
_LEAST_CHUNK = 1024**2  # bytes


class Piece:
    """Memory of one step at a time; grows to the size of the largest step."""

    def __init__(self) -> None:
        self._chunks: list[torch.Tensor] = []
        self._chunk = self._at = 0

    def take(self, num_bytes: int, *, pinned: bool) -> torch.Tensor:
        """Return `num_bytes` aligned bytes. Raises: RuntimeError if memory runs out."""
        length = num_bytes + -num_bytes % ALIGNMENT
        while self._chunk < len(self._chunks):
            chunk = self._chunks[self._chunk]
            if chunk.numel() - self._at >= length and (chunk.is_pinned() or not pinned):
                view = chunk[self._at : self._at + num_bytes]
                self._at += length
                return view
            self._chunk, self._at = self._chunk + 1, 0
        # Writable host memory, whatever the program's default device and inference mode.
        with torch.inference_mode(False):
            memory = torch.empty(max(length, _LEAST_CHUNK), dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._chunks.append(memory)
        self._at = length
        return self._chunks[-1][:num_bytes]

    def reset(self) -> None:
        """Mark the whole piece as free."""
        self._chunk = self._at = 0


class Pieces:
    """The pool of free pieces."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        for _ in range(NUM_PIECES):
            self._free.put(Piece())

    def acquire(self, limit_s: float) -> Piece | None:
        """Wait for a free piece; return None if there is no free piece within `limit_s`."""
        try:
            return self._free.get(timeout=limit_s)
        except queue.Empty:
            return None

    def give_back(self, piece: Piece) -> None:
        """Return a piece to the pool."""
        piece.reset()
        self._free.put(piece)


def as_bytes(memory: torch.Tensor) -> memoryview:
    """Return the bytes of flat host memory, without a copy; `memory` must outlive them. Raises: RuntimeError."""
    if not memory.numel():
        return memoryview(b"")
    if memory.device.type != "cpu" or not memory.data_ptr():
        raise RuntimeError(
            f"memory of the device {memory.device} has no bytes that can be read here; expected host memory"
        )
    array: Any = (ctypes.c_char * memory.numel()).from_address(memory.data_ptr())
    return memoryview(array).cast("B")
