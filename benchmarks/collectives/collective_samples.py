"""One sample of a collective on one rank: fresh inputs, the calls that are timed, and whether the result is right.

Where: `collective_rank` runs samples on order. Inputs come from the seed, the rank and the sample's number, so no two
samples are alike and any can be repeated. The check sees what the timed calls left behind:

- all_reduce, reduce_scatter: at some places, against the sum in float64 of what all ranks had there; the bounds are
  those of float32 sums in any order.
- all_reduce: the bits of the whole output are the same on all ranks.
- all_gather: the bits of every chunk are those that its rank put in.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.collectives.collective_board import Board
from benchmarks.collectives.collective_doors import FLOAT_BYTES, Door, allocate

NUM_PLACES = 256  # that are compared in float64, in each chunk
FLOAT32_EPSILON = 2.0**-23
COPIED_BYTES = 1 << 20  # of one sample of memcpy, as far as MAX_COPIES reach
MAX_COPIES = 32


class Samples:
    """Samples of one collective and size on one rank.

    Args:
        num_bytes: of the whole array, as nccl-tests counts: what all_reduce reduces, what all_gather collects, what
            reduce_scatter reduces.
    """

    def __init__(self, board: Board, rank: int, size: int, *, collective: str, num_bytes: int) -> None:
        self._board, self._rank, self._size = board, rank, size
        self._collective = collective
        count = num_bytes // FLOAT_BYTES
        self._chunk = count // size
        if collective != "all_reduce" and (count % size or not self._chunk):
            raise ValueError(f"{collective} of {num_bytes} bytes does not divide among {size} ranks")
        whole = allocate(count)
        if collective == "all_reduce":
            self._values = self._output = whole
        elif collective == "all_gather":
            self._values, self._output = allocate(self._chunk), whole
        else:
            self._values, self._output = whole, allocate(self._chunk)

    def take(self, door: Door, *, seed: int, first: int, num_samples: int, num_calls: int) -> dict[str, Any]:
        """Run samples from number `first` on; return the seconds of one call in each, and the problems found."""
        call = door.call(self._collective, self._output, self._values)
        times_s, problems = [], []
        for number in range(first, first + num_samples):
            generator = np.random.Generator(np.random.SFC64([seed, number, self._rank]))
            generator.random(dtype=np.float32, out=self._values)
            self._values -= np.float32(0.5)
            check = self._prepare_check(np.random.default_rng([seed, number]), num_calls)
            self._board.start_together()
            began = time.perf_counter()
            for _ in range(num_calls):
                call()
            times_s.append((time.perf_counter() - began) / num_calls)
            if problem := check():
                problems.append(f"sample {number} on rank {self._rank}: {problem}")
        return {"times_s": times_s, "problems": problems}

    def _prepare_check(self, places_of: np.random.Generator, num_calls: int) -> Callable[[], str]:
        if self._collective == "all_gather":
            own = _digest(self._values)
            return lambda: self._compare_chunks(own)
        if self._collective == "all_reduce":
            places = places_of.integers(0, len(self._values), NUM_PLACES)
            places[:2] = 0, len(self._values) - 1
            inputs = self._values[places].astype(np.float64)
            # In place: what is reduced once more is the same on all ranks, so each further call multiplies by size.
            factor = float(self._size) ** (num_calls - 1)
            return lambda: (
                self._compare_sums(inputs, self._output[places], factor)
                or ("" if len(set(self._board.exchange(_digest(self._output)))) == 1 else "bits differ between ranks")
            )
        within = places_of.integers(0, self._chunk, NUM_PLACES)
        within[:2] = 0, self._chunk - 1
        own_places = slice(self._rank * NUM_PLACES, (self._rank + 1) * NUM_PLACES)
        chunks = self._values.reshape(self._size, self._chunk)
        inputs = chunks[:, within].astype(np.float64).ravel()
        return lambda: self._compare_sums(inputs, self._output[within], 1.0, own_places)

    def _compare_sums(self, inputs: Any, outputs: Any, factor: float, places: slice = slice(None)) -> str:
        shown = np.stack([np.frombuffer(data) for data in self._board.exchange(inputs.tobytes())])[:, places]
        wanted = shown.sum(axis=0) * factor
        tolerance = np.abs(shown).sum(axis=0) * factor * self._size * FLOAT32_EPSILON
        wrong = np.flatnonzero(~(np.abs(outputs - wanted) <= tolerance))
        if not len(wrong):
            return ""
        return f"{len(wrong)} of {len(wanted)} sums are wrong, first {outputs[wrong[0]]}, expected {wanted[wrong[0]]}"

    def _compare_chunks(self, own: bytes) -> str:
        inputs = self._board.exchange(own)
        chunks = self._output.reshape(self._size, self._chunk)
        wrong = [rank for rank in range(self._size) if _digest(chunks[rank]) != inputs[rank]]
        return f"chunks of ranks {wrong} are not what these put in" if wrong else ""


def copy_rates(board: Board, *, num_bytes: int, num_samples: int, is_alone: bool, rank: int) -> list[float]:
    """Bytes per second of copying memory with libc's memcpy: all ranks at once, or rank 0 while others sleep."""
    count = max(num_bytes // FLOAT_BYTES, 1)
    source, target = allocate(count), allocate(count)
    num_calls = max(1, min(MAX_COPIES, COPIED_BYTES // num_bytes))
    rates = []
    for _ in range(num_samples):
        board.gather()
        if is_alone and rank != 0:
            board.gather()
            continue
        if not is_alone:
            board.start_together()
        began = time.perf_counter()
        for _ in range(num_calls):
            ctypes.memmove(target.ctypes.data, source.ctypes.data, num_bytes)
        rates.append(num_bytes * num_calls / (time.perf_counter() - began))
        if is_alone:
            board.gather()
    return rates


def _digest(values: Any) -> bytes:
    return hashlib.sha256(memoryview(values).cast("B")).digest()
