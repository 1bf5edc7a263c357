"""Table of one host's numbers over time, by column: rows as measured, or roll-ups of rows.

Where: the sample gateway makes tables from batches, `codec` converts them to blocks and back, `rollups` folds them.
"""

from __future__ import annotations

import math
import operator
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clary.contract.metric_samples import SampleBatch

ROW_PARTS = ("value",)
ROLL_UP_PARTS = ("least", "greatest", "mean", "count", "last")  # computed from the values in a roll-up's time span
MOST = 3.4e38  # approximate largest value of a 32-bit float
_MISSING = math.nan


@dataclass(frozen=True, kw_only=True)
class SeriesTable:
    """Columns of equal length.

    Attributes:
        at_ms: milliseconds since 1970, never decreasing; for a roll-up, the start of its span.
        columns: name of a series -> one array of 32-bit floats per part; NaN for missing values.
        parts: ROW_PARTS or ROLL_UP_PARTS.
    """

    at_ms: array[int]
    columns: Mapping[str, tuple[array[float], ...]]
    parts: tuple[str, ...] = ROW_PARTS

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.at_ms)


def table_of(batch: SampleBatch) -> SeriesTable:
    """Convert a checked batch to a table; values too large for a 32-bit float count as not measured."""
    return SeriesTable(
        at_ms=array("q", batch.at_ms),
        columns={name: (_stored_column(column),) for name, column in zip(batch.names, batch.columns, strict=True)},
    )


def _stored_column(column: Sequence[Any]) -> array[float]:
    try:
        # `min` and `max` may skip NaN or return it; if they return it, the comparison is false.
        if min(column) >= -MOST and max(column) <= MOST:
            return array("f", column)
    except (TypeError, ValueError):  # a value is missing, or the column is empty
        pass
    return array("f", map(_stored, column))


def _stored(value: float | None) -> float:
    return value if value is not None and -MOST <= value <= MOST else _MISSING


def rows_from(table: SeriesTable, first: int) -> SeriesTable:
    """Return the table without its first rows."""
    return _sliced(table, first, table.num_rows)


def between(table: SeriesTable, start_ms: int, end_ms: int) -> SeriesTable:
    """Return the rows from `start_ms` (inclusive) to `end_ms` (exclusive).

    Args:
        table: rows in order of time.
        start_ms: start in ms since 1970.
        end_ms: end in ms since 1970.
    """
    return _sliced(table, bisect_left(table.at_ms, start_ms), bisect_left(table.at_ms, end_ms))


def _sliced(table: SeriesTable, first: int, end: int) -> SeriesTable:
    if (first, end) == (0, table.num_rows):
        return table
    columns = {name: tuple(part[first:end] for part in parts) for name, parts in table.columns.items()}
    return SeriesTable(at_ms=table.at_ms[first:end], columns=columns, parts=table.parts)


def joined(tables: Sequence[SeriesTable]) -> SeriesTable:
    """Merge tables of one kind: their rows in order of time, with the columns of all tables."""
    parts = tables[0].parts
    at_ms = array("q", b"".join(table.at_ms for table in tables))
    names: dict[str, None] = {}
    for table in tables:
        names |= dict.fromkeys(table.columns)
    columns = {}
    for name in names:
        pieces = [table.columns.get(name) or _missing(table) for table in tables]
        columns[name] = tuple(array("f", b"".join(column)) for column in zip(*pieces, strict=True))
    if all(map(operator.le, at_ms, at_ms[1:])):
        return SeriesTable(at_ms=at_ms, columns=columns, parts=parts)
    # The host's clock was set back between two batches.
    order = sorted(range(len(at_ms)), key=at_ms.__getitem__)
    sorted_columns = {
        name: tuple(array("f", map(column.__getitem__, order)) for column in whole) for name, whole in columns.items()
    }
    return SeriesTable(at_ms=array("q", map(at_ms.__getitem__, order)), columns=sorted_columns, parts=parts)


def _missing(table: SeriesTable) -> tuple[array[float], ...]:
    return (array("f", [_MISSING]) * table.num_rows,) * len(table.parts)
