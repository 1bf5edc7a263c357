"""Times of each training step's parts, which a rank records for the agent of its host.

Where: `train.steps` writes one file per process into the folder that CLARY_STEPS_FOLDER names;
`agent.metrics.step_source` reads the file while it is written and turns it into series. A file is a header and a ring
buffer of rows:

    0      magic, rank, process
    64     row of step 1, row of step 2, ...; step N + NUM_ROWS overwrites step N

A row has its number at both ends, so that a reader recognises a row that is being written. All times are seconds.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

FOLDER = (".clary", "steps")  # below a host's /opt/ml
FOLDER_VARIABLE = "CLARY_STEPS_FOLDER"
SWITCH_VARIABLE = "CLARY_STEPS"  # 0: no steps are recorded
ENDING = ".steps"  # suffix of a file's name, RANK-PROCESS.steps

NUM_ROWS = 512  # rows of a process: enough for a thousand steps per second at two reads per second
HEADER_BYTES = 64
_MAGIC = b"CLARYST1"
_HEADER = struct.Struct("<8sqq")
_ROW = struct.Struct("<q7dq")
ROW_BYTES = _ROW.size
FILE_BYTES = HEADER_BYTES + NUM_ROWS * ROW_BYTES
_MAX_RANK = 1 << 31


class StepRow(NamedTuple):
    """One step of one rank. `step_s` minus all parts is the time outside of the parts.

    Attributes:
        number: number of the step, from 1.
        ended_s: seconds since 1970.
        step_s: time from the end of the previous step to the end of this step.
        data_wait_s: time of waiting for batches of a DataLoader.
        forward_s: time from a batch to its backward pass.
        backward_s: time in backward passes, without their communication.
        communication_s: time blocked in collectives, in any part of the step.
        optimizer_s: time in the optimizer's step.
    """

    number: int
    ended_s: float
    step_s: float
    data_wait_s: float
    forward_s: float
    backward_s: float
    communication_s: float
    optimizer_s: float


PARTS = ("data_wait_s", "forward_s", "backward_s", "communication_s", "optimizer_s")


def pack_header(rank: int, process: int) -> bytes:
    """Return the bytes of a file's header."""
    return _HEADER.pack(_MAGIC, rank, process).ljust(HEADER_BYTES, b"\0")


def read_header(data: bytes) -> int | None:
    """Return the rank in a file's header, or None if the bytes are not a header of such a file."""
    if len(data) < HEADER_BYTES:
        return None
    magic, rank, _ = _HEADER.unpack_from(data)
    return rank if magic == _MAGIC and 0 <= rank < _MAX_RANK else None


def offset_of(number: int) -> int:
    """Return the offset of a step's row in the file."""
    return HEADER_BYTES + (number - 1) % NUM_ROWS * ROW_BYTES


def pack_row(row: StepRow) -> bytes:
    """Return the bytes of a row."""
    return _ROW.pack(*row, row.number)


def read_rows(data: bytes) -> list[StepRow]:
    """Parse rows from bytes that begin with a row; return them without torn, empty and impossible rows."""
    rows = []
    for number, *values, again in _ROW.iter_unpack(data[: len(data) // ROW_BYTES * ROW_BYTES]):
        if number == again > 0 and all(map(math.isfinite, values)) and min(values) >= 0:
            rows.append(StepRow(number, *values))
    return rows
