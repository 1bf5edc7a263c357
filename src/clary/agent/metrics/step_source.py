"""`rank-N/step_s` and its parts: the times of training steps, from files of ranks.

Where: `host_metrics` creates one when the program starts. A value is the mean over the steps that have ended since the
previous row; a row without such a step has only `rank-N/steps`, the number of steps so far. The first step of a
process, which includes the program's preparations, is counted but excluded from means. `rank-N/step_max_s` is the
longest of the averaged steps.

Programs write these files with any content: data other than rows of numbers is ignored.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from clary.agent.metrics.program_source import MAX_RANKS
from clary.agent.metrics.sources import Slowly, Values
from clary.base.beneath import Folder
from clary.contract.step_records import (
    ENDING,
    HEADER_BYTES,
    NUM_ROWS,
    PARTS,
    ROW_BYTES,
    StepRow,
    offset_of,
    read_header,
    read_rows,
)

_MAX_NAMES = 10_000  # limit of names listed: the program can fill the folder
MAX_FILES = 4 * MAX_RANKS  # limit of files kept open; programs that restart ranks leave old files behind
_ROWS_AT_ONCE = 16
_DIGITS = 7  # decimal places of seconds: tenths of microseconds


class StepSource:
    """Reads the files of one host's ranks.

    Args:
        home: a folder that the program cannot replace.
        below: path from `home` to the folder of the files; the program may replace parts of it by links.
    """

    def __init__(self, home: Path, below: Sequence[str] = ()) -> None:
        self._home = home
        self._below = "/".join(below)
        self._slowly = Slowly()
        self._files: dict[str, _File] = {}
        self._refused: set[str] = set()

    def read(self, now_s: float) -> Values:
        """Return the values at a monotonic time."""
        if self._slowly.is_due(now_s):
            self._look()
        fresh: dict[int, tuple[_File, list[StepRow]]] = {}
        for file in self._files.values():
            rows = file.new_rows()
            known = fresh.get(file.rank)
            # Of several processes with the same rank, the process with the latest step is training.
            if known is None or (file.last_s, len(rows)) > (known[0].last_s, len(known[1])):
                fresh[file.rank] = (file, rows)
        values: Values = {}
        for rank, (file, rows) in sorted(fresh.items())[:MAX_RANKS]:
            values |= _values_of(rank, file.num_steps, rows)
        return values

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _look(self) -> None:
        with contextlib.suppress(OSError), Folder.at(self._home) as home, home.folder(self._below) as folder:
            for name in sorted(name for name in folder.names(limit=_MAX_NAMES) if name.endswith(ENDING)):
                if name in self._files or name in self._refused or len(self._files) >= MAX_FILES:
                    continue
                file = _opened(folder, name)
                if isinstance(file, _File):
                    self._files[name] = file
                elif file is Unfit.FOR_EVER and len(self._refused) < MAX_FILES:
                    self._refused.add(name)


class Unfit(Enum):
    """The reason why a file is not read."""

    STILL = "still"  # its process has created the file but not yet written to it
    FOR_EVER = "for ever"


class _File:
    """The rows of one process."""

    def __init__(self, descriptor: int, rank: int) -> None:
        self.rank = rank
        self.num_steps = 0
        self.last_s = 0.0
        self._descriptor = descriptor
        self._changed_ns: int | None = None

    def new_rows(self) -> list[StepRow]:
        """Return the rows of steps that have ended since the last call, oldest first."""
        try:
            facts = os.fstat(self._descriptor)
            changed_ns = facts.st_mtime_ns
            if changed_ns == self._changed_ns:
                return []
            # A file that has shrunk belongs to another program, which was started in the same process.
            is_anew = self.num_steps and facts.st_size < offset_of(self.num_steps) + ROW_BYTES
            rows = self._rows_after(0 if is_anew else self.num_steps)
        except OSError:
            return []
        # File times are coarse: a later row may have the same time.
        self._changed_ns = changed_ns if not rows else None
        if rows:
            self.num_steps, self.last_s = rows[-1].number, rows[-1].ended_s
        return rows

    def close(self) -> None:
        os.close(self._descriptor)

    def _rows_after(self, number: int) -> list[StepRow]:
        rows: list[StepRow] = []
        while True:
            expected = number + 1 + len(rows)
            num_wanted = min(_ROWS_AT_ONCE, NUM_ROWS - (expected - 1) % NUM_ROWS)  # up to the end of the ring
            found = read_rows(os.pread(self._descriptor, num_wanted * ROW_BYTES, offset_of(expected)))
            if found and found[0].number > expected:  # the ring has been overwritten since
                return self._ring(after=number)
            matching = [row for at, row in enumerate(found) if row.number == expected + at]
            rows += matching
            if len(matching) < num_wanted:
                return rows

    def _ring(self, *, after: int) -> list[StepRow]:
        found = read_rows(os.pread(self._descriptor, NUM_ROWS * ROW_BYTES, HEADER_BYTES))
        return sorted(row for row in found if row.number > after)


def _opened(folder: Folder, name: str) -> _File | Unfit:
    try:
        descriptor = folder.open_file(name)
    except OSError:
        return Unfit.FOR_EVER
    unfit = Unfit.FOR_EVER
    with contextlib.suppress(OSError):
        header = os.pread(descriptor, HEADER_BYTES, 0)
        rank = read_header(header)
        if rank is not None:
            return _File(descriptor, rank)
        if len(header) < HEADER_BYTES:
            unfit = Unfit.STILL
    os.close(descriptor)
    return unfit


def _values_of(rank: int, num_steps: int, rows: Sequence[StepRow]) -> Values:
    values: Values = {f"rank-{rank}/steps": float(num_steps)}
    rows = [row for row in rows if row.number > 1]
    if rows:
        values[f"rank-{rank}/step_s"] = _mean([row.step_s for row in rows])
        values[f"rank-{rank}/step_max_s"] = round(max(row.step_s for row in rows), _DIGITS)
        for part in PARTS:
            values[f"rank-{rank}/{part}"] = _mean([getattr(row, part) for row in rows])
    return values


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), _DIGITS)
