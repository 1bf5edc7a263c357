"""Reduces the buckets of a histogram to a few, ordered from left to right; all counts are kept. Pure.

Where: `event_summaries` reads them from a record; the console draws them over the steps. Writers record a thousand or
more buckets, whose width grows with their distance from zero. Charts have a linear scale, as TensorBoard draws it:
buckets that share a cell of the scale are joined, and no bucket is split.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence

from clary.contract.training_values import MAX_BUCKETS

MAX_READ_BUCKETS = 100_000  # of one histogram; numpy's automatic bins may be many

Row = tuple[float, float, float]  # left, right, count
_MOST = sys.float_info.max  # JSON has no infinity
_DIGITS = 7  # significant digits of an edge: more than a chart shows
_WHOLE = 2.0**53  # floats up to this hold whole numbers exactly


def buckets_text(rows: Sequence[Row], *, least: float = -math.inf, greatest: float = math.inf) -> str:
    """Return the buckets that are not empty, as JSON of [[left, right, count], ...]; at most MAX_BUCKETS.

    Args:
        rows: rows in any order; rows with infinite or NaN values are left out.
        least: least of the values; the first bucket does not begin below it.
        greatest: greatest of the values; the last bucket does not end above it.
    """
    held = sorted(
        (min(left, right), max(left, right), count) for left, right, count in rows if _holds(left, right, count)
    )
    if not held:
        return "[]"
    left, right, count = held[0]
    held[0] = (max(left, least) if least <= right else left, right, count)
    held.sort()
    left, right, count = held[-1]
    held[-1] = (left, min(right, greatest) if greatest >= left else right, count)
    return json.dumps(sorted(_joined(group) for group in _groups(held)))


def _holds(left: float, right: float, count: float) -> bool:
    return count > 0 and math.isfinite(left) and math.isfinite(right) and math.isfinite(count)


def _groups(held: Sequence[Row]) -> list[list[Row]]:
    if len(held) <= MAX_BUCKETS:
        return [[row] for row in held]
    low, high = held[0][0], max(row[1] for row in held)
    width = high / MAX_BUCKETS - low / MAX_BUCKETS
    cells: dict[int, list[Row]] = {}
    for row in held:
        middle = row[0] / 2 + row[1] / 2
        cell = int((middle - low) / width) if width > 0 and math.isfinite(middle - low) else 0
        cells.setdefault(max(0, min(MAX_BUCKETS - 1, cell)), []).append(row)
    return [cells[cell] for cell in sorted(cells)]


def _joined(group: Sequence[Row]) -> list[float]:
    count = min(sum((row[2] for row in group), 0.0), _MOST)
    edges = (min(row[0] for row in group), max(row[1] for row in group))
    return [*(_rounded(edge) for edge in edges), int(count) if count.is_integer() and count < _WHOLE else count]


def _rounded(edge: float) -> float:
    return float(f"{edge:.{_DIGITS}g}")
