"""Tables of series for tests: measurements of a host with ranks."""

import math
import random
from array import array

from clary.control.series.tables import SeriesTable

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def rows(columns, *, start_ms=START_MS, step_ms=500):
    """Return rows of named columns; None is a missing measurement."""
    num_rows = len(next(iter(columns.values())))
    return SeriesTable(
        at_ms=array("q", (start_ms + step_ms * row for row in range(num_rows))),
        columns={
            name: (array("f", [math.nan if value is None else value for value in values]),)
            for name, values in columns.items()
        },
    )


def measured(num_rows, *, num_ranks=2, start_ms=START_MS, seed=1):
    """Return rows like the measurements of a host."""
    chance = random.Random(seed)
    columns = {"host/cpu_percent": [round(chance.gauss(180, 8), 1) for _ in range(num_rows)]}
    columns["host/memory_bytes"] = [4096.0 * (760_000 + row // 3) for row in range(num_rows)]
    for rank in range(num_ranks):
        columns[f"rank-{rank}/cpu_percent"] = [round(chance.gauss(94, 3), 1) for _ in range(num_rows)]
    return rows(columns, start_ms=start_ms)


def plain(table):
    """Return a table as lists, None for missing values: NaN is not equal to itself."""
    return (
        list(table.at_ms),
        {
            name: [[None if math.isnan(value) else value for value in part] for part in parts]
            for name, parts in table.columns.items()
        },
        table.parts,
    )
