"""Numbers over time that a host measures: rows by moment, columns by name of a series.

Where: `POST /clary/v1/agents/{job}/{attempt}/{host}/samples` carries a SampleBatch; the answer is a SampleReceipt. Rows
are numbered from 0 over the life of one host in one attempt, so that no row is stored twice.

A series is named SCOPE/QUANTITY; the quantity ends with its unit: `host/cpu_percent`, `rank-3/memory_bytes`,
`gpu-0/power_w`. In percentages of processors, 100 is one processor. Names of quantities in bytes per second end with
`_bytes_s`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_ROWS = 1_200  # rows of a batch: two minutes at an interval of 100 ms
MAX_COLUMNS = 1_024
SERIES_NAME = re.compile(r"[a-z][a-z0-9-]{0,40}/[a-z][a-z0-9_]{0,60}")


@dataclass(frozen=True, kw_only=True)
class SampleBatch:
    """Rows in order of time.

    Attributes:
        first_row: number of the first row.
        at_ms: milliseconds since 1970 by the host's clock, one for each row, in ascending order.
        names: names of the series, one for each column.
        columns: values by column, then row; None for a missing measurement.
        num_dropped: number of rows before `first_row` that the agent has dropped, over the host's life.
    """

    first_row: int
    at_ms: tuple[int, ...]
    names: tuple[str, ...]
    columns: tuple[tuple[float | None, ...], ...]
    num_dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class SampleReceipt:
    """Acknowledgement of the rows that the service has stored."""

    next_row: int  # rows below this number are stored or not needed
