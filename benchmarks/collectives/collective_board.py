"""A file that the ranks of one machine map: they start together there, and exchange small data.

Where: `collective_rank` meets here before each timed call and compares results here after it, so that neither goes
through the collectives under test, nor through the network between hosts under test.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

LIMIT_S = 120.0
COUNTER_BYTES = 128  # two cache lines a rank
SHELF_BYTES = 1 << 16  # what one rank can show
_LENGTH_BYTES = 8
_NAP_S = 0.0002
_YIELDS_A_LOOK = 1000


def make_board(path: Path, num_ranks: int) -> None:
    """Create the file, all zeros."""
    with path.open("xb") as file:
        file.truncate(num_ranks * (COUNTER_BYTES + SHELF_BYTES))


class Board:
    """One rank's place at the board. Every rank calls the same methods in the same order.

    Raises: TimeoutError if a peer has not come within LIMIT_S.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._words = memoryview(self._memory).cast("Q")
        self._round = 0

    def gather(self) -> None:
        """Wait for all, asleep: for waits that may be long."""
        self._arrive()
        deadline_s = time.monotonic() + LIMIT_S
        while not self._all_are_here():
            self._check(deadline_s)
            time.sleep(_NAP_S)

    def start_together(self) -> None:
        """Wait for all, asleep first and awake in the end: ranks leave within microseconds of each other."""
        self.gather()
        self._arrive()
        deadline_s = time.monotonic() + LIMIT_S
        num_yields = 0
        while not self._all_are_here():
            os.sched_yield()
            num_yields += 1
            if num_yields % _YIELDS_A_LOOK == 0:
                self._check(deadline_s)

    def exchange(self, data: bytes) -> list[bytes]:
        """Show `data`, at most SHELF_BYTES less 8, and return the data of every rank, in rank order."""
        if len(data) > SHELF_BYTES - _LENGTH_BYTES:
            raise ValueError(f"a rank can show {SHELF_BYTES - _LENGTH_BYTES} bytes, got {len(data)}")
        place = self._shelf(self._rank)
        self._memory[place : place + _LENGTH_BYTES] = len(data).to_bytes(_LENGTH_BYTES, "little")
        self._memory[place + _LENGTH_BYTES : place + _LENGTH_BYTES + len(data)] = data
        self.gather()
        shown = []
        for rank in range(self._size):
            place = self._shelf(rank)
            length = int.from_bytes(self._memory[place : place + _LENGTH_BYTES], "little")
            shown.append(self._memory[place + _LENGTH_BYTES : place + _LENGTH_BYTES + length])
        self.gather()  # nobody shows the next thing before all have read this one
        return shown

    def _shelf(self, rank: int) -> int:
        return self._size * COUNTER_BYTES + rank * SHELF_BYTES

    def _arrive(self) -> None:
        self._round += 1
        self._words[self._rank * COUNTER_BYTES // 8] = self._round

    def _all_are_here(self) -> bool:
        return all(self._words[rank * COUNTER_BYTES // 8] >= self._round for rank in range(self._size))

    def _check(self, deadline_s: float) -> None:
        if time.monotonic() > deadline_s:
            missing = [rank for rank in range(self._size) if self._words[rank * COUNTER_BYTES // 8] < self._round]
            raise TimeoutError(f"rank {self._rank}: ranks {missing} did not come within {LIMIT_S:g} s")
