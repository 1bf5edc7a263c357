"""Rows that were measured and that the service has not taken yet: numbered, bounded, the oldest given up first.

Where: `sampling` appends from its thread, `shipper` takes batches and lets go in its own.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from clary.contract.metric_samples import MAX_COLUMNS, MAX_ROWS, SERIES_NAME, SampleBatch

MAX_BYTES = 10 * 1024 * 1024
MAX_AGE_S = 2 * 3600.0
MAX_BATCH_VALUES = 60_000  # half a megabyte as JSON
_ROW_BYTES = 200  # of a row besides its values


class _Row(NamedTuple):
    at_ms: int
    names: tuple[str, ...]  # the same object in every row that has the same series
    values: array[float]


class RowStore:
    """The rows of one host of one attempt; safe for many threads.

    Args:
        max_bytes: of memory that rows may take.
        max_age_s: by the rows' own times.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_age_s: float = MAX_AGE_S) -> None:
        self._max_bytes = max_bytes
        self._max_age_ms = max_age_s * 1000
        self._lock = threading.Lock()
        self._rows: deque[_Row] = deque()
        self._first_row = 0  # number of the first of `_rows`
        self._size_bytes = 0
        self._num_dropped = 0
        self._names: tuple[str, ...] = ()

    @property
    def next_row(self) -> int:
        """Number of the row that comes next."""
        with self._lock:
            return self._first_row + len(self._rows)

    @property
    def first_row(self) -> int:
        """Number of the oldest row that is kept; `next_row` when none is."""
        with self._lock:
            return self._first_row

    @property
    def num_dropped(self) -> int:
        """Rows that were given up."""
        with self._lock:
            return self._num_dropped

    def append(self, at_ms: int, values: Mapping[str, float]) -> None:
        """Add a row."""
        names = tuple(values)
        with self._lock:
            if names != self._names:
                self._names = names
            row = _Row(at_ms, self._names, array("d", values.values()))
            self._rows.append(row)
            self._size_bytes += _size_of(row)
            while self._size_bytes > self._max_bytes or at_ms - self._rows[0].at_ms > self._max_age_ms:
                self._drop_first()

    def batch(self) -> SampleBatch | None:
        """Return the oldest rows, as many as one batch may hold; None if there are none.

        What no batch may hold is left out: names that are none of series, series beyond the bound, infinite values.
        """
        with self._lock:
            num_rows = num_values = 0
            for row in self._rows:
                num_values += len(row.names)
                if num_rows == MAX_ROWS or (num_rows and num_values > MAX_BATCH_VALUES):
                    break
                num_rows += 1
            rows = [self._rows[index] for index in range(num_rows)]
            first_row, num_dropped = self._first_row, self._num_dropped
        return _batch_of(rows, first_row=first_row, num_dropped=num_dropped) if rows else None

    def let_go(self, next_row: int) -> None:
        """Forget rows below a number, which the service has; a number beyond all rows is where the next ones begin."""
        with self._lock:
            while self._rows and self._first_row < next_row:
                self._forget_first()
            self._first_row = max(self._first_row, next_row)

    def give_up(self, next_row: int) -> None:
        """Forget rows below a number, which the service will not have."""
        with self._lock:
            while self._rows and self._first_row < next_row:
                self._drop_first()

    def _drop_first(self) -> None:
        self._num_dropped += 1
        self._forget_first()

    def _forget_first(self) -> None:
        self._size_bytes -= _size_of(self._rows.popleft())
        self._first_row += 1


def _size_of(row: _Row) -> int:
    return _ROW_BYTES + len(row.values) * row.values.itemsize


def _batch_of(rows: list[_Row], *, first_row: int, num_dropped: int) -> SampleBatch:
    names: dict[str, None] = {}
    for row_names in dict.fromkeys(row.names for row in rows):
        names |= dict.fromkeys(name for name in row_names if SERIES_NAME.fullmatch(name))
    kept = tuple(names)[:MAX_COLUMNS]
    by_name = [dict(zip(row.names, row.values, strict=True)) for row in rows]
    return SampleBatch(
        first_row=first_row,
        at_ms=tuple(row.at_ms for row in rows),
        names=kept,
        columns=tuple(tuple(_number(row.get(name)) for row in by_name) for name in kept),
        num_dropped=num_dropped,
    )


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
