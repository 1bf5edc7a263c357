"""Step counts of the debugger at each checkpoint, from which a later attempt continues to count.

Where: a hook (`train.debugger.capture.step_counting`) writes one file per process into the folder that
`FOLDER_VARIABLE` names, with a row for each step that begins. `agent.checkpoints.step_counts` reads it when a
checkpoint set is taken; the set's manifest holds the row that was the last when the newest file of the set was written.
A restore writes the counts of the restored sets into `RESTORED_FILE` of the same folder. Counts are not stored in the
folder of checkpoints, because scripts list that folder.

    0      magic, worker, start of the process, its counts before the first row
    128    row 1, row 2, ...; row N + NUM_ROWS overwrites row N

A row has its number at both ends; they differ while the row is being written. Times are nanoseconds since
1970.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

FOLDER = (".clary", "step-counts")  # below a host's /opt/ml
FOLDER_VARIABLE = "CLARY_STEP_COUNTS_FOLDER"  # set if a job has checkpoints
ENDING = ".counts"  # suffix of a file's name, WORKER-PROCESS.counts
RESTORED_FILE = "restored.json"  # a RestoredCounts; absent if no counts are known

NUM_ROWS = 4096  # rows of a process: 40 s at a hundred steps per second; checkpoints are read every 5 s
HEADER_BYTES = 128
MAX_COUNT = 1 << 53  # JSON numbers are exact up to this
_MAGIC = b"CLARYSC1"
_HEADER = struct.Struct("<8s6q")
_ROW = struct.Struct("<7q")
ROW_BYTES = _ROW.size
FILE_BYTES = HEADER_BYTES + NUM_ROWS * ROW_BYTES
_MAX_WORKER = 1 << 31


@dataclass(frozen=True)
class StepCounts:
    """Numbers of the last begun steps; -1 before the first step.

    A step that belongs to no phase counts only in `total`.
    """

    total: int = -1
    train: int = -1
    evaluate: int = -1
    predict: int = -1

    @property
    def is_possible(self) -> bool:
        """Whether each number is at least -1 and at most the total."""
        parts = (self.train, self.evaluate, self.predict)
        return min(parts) >= -1 and max(parts) <= self.total < MAX_COUNT


@dataclass(frozen=True, kw_only=True)
class RestoredCounts:
    """Step counts of the sets from which a host was restored."""

    own: StepCounts | None = None  # counts of the host's own set, for hosts that train independently
    first: StepCounts | None = None  # counts of the host with the lowest number, for hosts that train together


class CountsHeader(NamedTuple):
    """Identity of a process, its start time, and the counts before its first step."""

    worker: int
    began_ns: int
    before: StepCounts


class CountsRow(NamedTuple):
    """A step that has begun."""

    number: int  # number of the row, from 1
    at_ns: int
    counts: StepCounts


def pack_header(header: CountsHeader) -> bytes:
    """Return the bytes of a file's header."""
    packed = _HEADER.pack(_MAGIC, header.worker, header.began_ns, *astuple(header.before))
    return packed.ljust(HEADER_BYTES, b"\0")


def read_header(data: bytes) -> CountsHeader | None:
    """Return the header of a file of step counts, or None for any other file."""
    if len(data) < HEADER_BYTES:
        return None
    magic, worker, began_ns, *before = _HEADER.unpack_from(data)
    counts = StepCounts(*before)
    if magic != _MAGIC or not 0 <= worker < _MAX_WORKER or began_ns < 0 or not counts.is_possible:
        return None
    return CountsHeader(worker, began_ns, counts)


def offset_of(number: int) -> int:
    """Return the offset of a row in the file."""
    return HEADER_BYTES + (number - 1) % NUM_ROWS * ROW_BYTES


def pack_row(number: int, at_ns: int, counts: Sequence[int]) -> bytes:
    """Return the bytes of a row; the number is at both ends, so that a torn row is detected.

    Args:
        number: number of the row, from 1.
        at_ns: start of the step, in ns since 1970.
        counts: total, train, evaluate, predict.
    """
    return _ROW.pack(number, at_ns, *counts, number)


def read_rows(data: bytes) -> list[CountsRow]:
    """Parse rows from bytes that begin with a row; return whole, possible, non-empty rows in order of number."""
    rows = []
    for number, at_ns, *values, again in _ROW.iter_unpack(data[: len(data) // ROW_BYTES * ROW_BYTES]):
        counts = StepCounts(*values)
        if number == again > 0 and at_ns >= 0 and counts.is_possible:
            rows.append(CountsRow(number, at_ns, counts))
    return sorted(rows, key=lambda row: row.number)


def counts_at(header: CountsHeader, rows: Sequence[CountsRow], at_ns: int) -> StepCounts:
    """Return the counts of a process at a moment, or its oldest known counts if its rows begin later.

    Args:
        rows: rows of the file, sorted by number.
    """
    earlier = [row for row in rows if row.at_ns <= at_ns]
    if earlier:
        return earlier[-1].counts
    return rows[0].counts if rows and rows[0].number > 1 else header.before
