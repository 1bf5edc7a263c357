"""Store of measured rows that the service has not yet acknowledged; `outbox` defines their numbers and limits.

Where: `sampling` adds rows from its thread, `shipper` gets batches in its own thread.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import NamedTuple

from clary.agent.outbox import Outbox, Stretch
from clary.contract.metric_samples import MAX_COLUMNS, MAX_ROWS, SERIES_NAME, SampleBatch

MAX_BYTES = 10 * 1024 * 1024
MAX_AGE_S = 2 * 3600.0
MAX_BATCH_VALUES = 60_000  # values per batch; half a megabyte as JSON
_ROW_BYTES = 200  # memory of a row in addition to its values


class Row(NamedTuple):
    """The values measured at one moment."""

    at_ms: int
    names: tuple[str, ...]  # a single object shared by all rows with the same series
    values: array[float]


class RowStore(Outbox[Row]):
    """The rows of one host of one attempt.

    Args:
        max_bytes: memory limit of the rows.
        max_age_s: maximum age of a row, measured against the time of the newest row.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_age_s: float = MAX_AGE_S) -> None:
        max_age_ms = max_age_s * 1000
        super().__init__(
            size_of=_size_of,
            max_bytes=max_bytes,
            is_stale=lambda oldest, newest: newest.at_ms - oldest.at_ms > max_age_ms,
        )
        self._names: tuple[str, ...] = ()

    def add(self, at_ms: int, values: Mapping[str, float]) -> None:
        """Add a row; only one thread may call this."""
        names = tuple(values)
        if names != self._names:
            self._names = names
        self.append(Row(at_ms, self._names, array("d", values.values())))

    def batch(self) -> SampleBatch | None:
        """Return the oldest rows, up to the size of one batch, or None.

        Invalid names of series, series beyond the limit and values that are not finite are dropped.
        """
        rows = self.oldest(max_items=MAX_ROWS, weight_of=lambda row: len(row.names), max_weight=MAX_BATCH_VALUES)
        return _batch_of(rows) if rows.items else None


def _size_of(row: Row) -> int:
    return _ROW_BYTES + len(row.values) * row.values.itemsize


def _batch_of(rows: Stretch[Row]) -> SampleBatch:
    names: dict[str, None] = {}
    for row_names in dict.fromkeys(row.names for row in rows.items):
        names |= dict.fromkeys(name for name in row_names if SERIES_NAME.fullmatch(name))
    kept = tuple(names)[:MAX_COLUMNS]
    by_name = [dict(zip(row.names, row.values, strict=True)) for row in rows.items]
    return SampleBatch(
        first_row=rows.first,
        at_ms=tuple(row.at_ms for row in rows.items),
        names=kept,
        columns=tuple(tuple(_number(row.get(name)) for row in by_name) for name in kept),
        num_dropped=rows.num_dropped,
    )


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
