"""Checks of a batch of samples from an untrusted sender. Pure.

Where: the sample gateway checks each batch before it stores it.
"""

from __future__ import annotations

import operator

from clary.contract.metric_samples import MAX_COLUMNS, MAX_ROWS, SERIES_NAME, SampleBatch

MOST_BEHIND_MS = 8 * 24 * 3600 * 1000  # agents keep minutes of rows for an unavailable service; clocks may be wrong
MOST_AHEAD_MS = 24 * 3600 * 1000
MAX_ROW_NUMBER = 2**53  # exact in every JSON parser; at one row per millisecond it lasts 285,000 years


def complaint(batch: SampleBatch, *, now_ms: int) -> str:
    """Return the fault of a batch, with the expected and the actual value, or an empty text."""
    num_rows = len(batch.at_ms)
    if not 0 <= batch.first_row <= MAX_ROW_NUMBER:
        return f"first_row counts from 0 to {MAX_ROW_NUMBER}, got {batch.first_row}"
    if not 0 <= batch.num_dropped <= MAX_ROW_NUMBER:
        return f"num_dropped counts from 0 to {MAX_ROW_NUMBER}, got {batch.num_dropped}"
    if num_rows > MAX_ROWS:
        return f"a batch has at most {MAX_ROWS} rows, got {num_rows}"
    if len(batch.names) > MAX_COLUMNS:
        return f"a batch has at most {MAX_COLUMNS} series, got {len(batch.names)}"
    if len(batch.columns) != len(batch.names):
        return f"a batch has one column a name: {len(batch.names)} names, got {len(batch.columns)} columns"
    if len(set(batch.names)) != len(batch.names):
        return "a series is named twice in one batch"
    for name, column in zip(batch.names, batch.columns, strict=True):
        if not SERIES_NAME.fullmatch(name):
            return f"a series is called SCOPE/QUANTITY like rank-3/memory_bytes, got {name[:120]!a}"
        if len(column) != num_rows:
            return f"column {name} has {len(column)} values, expected one for each of {num_rows} rows"
    if any(map(operator.gt, batch.at_ms, batch.at_ms[1:])):
        return "times of rows never fall; take what was measured in its order"
    for moment in (batch.at_ms[0], batch.at_ms[-1]) if num_rows else ():
        if not now_ms - MOST_BEHIND_MS <= moment <= now_ms + MOST_AHEAD_MS:
            return (
                f"a row is of {moment} ms since 1970, {abs(moment - now_ms) // 1000} s off this service's clock; "
                "set the host's clock"
            )
    return ""
