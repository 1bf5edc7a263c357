"""Roll-ups: least, greatest, mean, number and last of the values in a time span. Pure.

Roll-ups of roll-ups equal roll-ups of the values, except for rounding; so rows are folded once, and a span may be
folded in two halves.

For speed, a column is cut into one list per span, and `min`, `max` and `fsum` process whole lists; only columns with
missing values are processed value by value.
"""

from __future__ import annotations

import math
import operator
from array import array
from bisect import bisect_left
from collections.abc import Sequence

from clary.control.series.tables import ROLL_UP_PARTS, ROW_PARTS, SeriesTable

Span = tuple[int, int]  # range of row numbers, the end exclusive
Columns = tuple["array[float]", ...]  # one array for each part of a roll-up


def fold(table: SeriesTable, step_ms: int) -> SeriesTable:
    """Return the roll-ups of spans of `step_ms`, which begin at its multiples since 1970; empty spans are omitted."""
    starts, spans = _spans(table.at_ms, step_ms)
    fold_column = _fold_values if table.parts == ROW_PARTS else _fold_roll_ups
    columns = {name: fold_column(parts, spans) for name, parts in table.columns.items()}
    return SeriesTable(at_ms=starts, columns=columns, parts=ROLL_UP_PARTS)


def _spans(at_ms: Sequence[int], step_ms: int) -> tuple[array[int], list[Span]]:
    starts, spans, first = array("q"), [], 0
    while first < len(at_ms):
        start_ms = at_ms[first] // step_ms * step_ms
        end = bisect_left(at_ms, start_ms + step_ms, first)
        starts.append(start_ms)
        spans.append((first, end))
        first = end
    return starts, spans


def _fold_values(parts: Columns, spans: Sequence[Span]) -> Columns:
    (values,) = parts
    numbers = values.tolist()
    if math.isnan(sum(numbers)):
        return _as_columns([_of_values([value for value in piece if value == value]) for piece in _cut(numbers, spans)])
    counts = [end - first for first, end in spans]
    if numbers and _is_level(values):
        level = array("f", values[:1]) * len(spans)
        return level, level, level, array("f", counts), level
    pieces = _cut(numbers, spans)
    return (
        array("f", map(min, pieces)),
        array("f", map(max, pieces)),
        array("f", map(operator.truediv, map(math.fsum, pieces), counts)),
        array("f", counts),
        array("f", [numbers[end - 1] for _, end in spans]),
    )


def _fold_roll_ups(parts: Columns, spans: Sequence[Span]) -> Columns:
    least, greatest, mean, count, last = (part.tolist() for part in parts)
    # A column that a block lacked is NaN in all parts, also in the number of values.
    if not min(count, default=1.0) > 0 or math.isnan(sum(count)):
        return _fold_gapped(parts, spans)
    totals = list(map(math.fsum, _cut(count, spans)))
    sums = map(math.fsum, _cut(list(map(operator.mul, mean, count)), spans))
    return (
        array("f", map(min, _cut(least, spans))),
        array("f", map(max, _cut(greatest, spans))),
        array("f", map(operator.truediv, sums, totals)),
        array("f", totals),
        array("f", [last[end - 1] for _, end in spans]),
    )


def _fold_gapped(parts: Columns, spans: Sequence[Span]) -> Columns:
    """Fold roll-ups, some of which have no values."""
    least, greatest, mean, count, last = parts
    folded = []
    for first, end in spans:
        rows = [row for row in range(first, end) if count[row] > 0]
        if not rows:
            folded.append(_of_values(()))
            continue
        total = math.fsum(count[row] for row in rows)
        folded.append(
            (
                min(least[row] for row in rows),
                max(greatest[row] for row in rows),
                math.fsum(mean[row] * count[row] for row in rows) / total,
                total,
                last[rows[-1]],
            )
        )
    return _as_columns(folded)


def _of_values(values: Sequence[float]) -> tuple[float, ...]:
    if not values:
        return (math.nan, math.nan, math.nan, 0.0, math.nan)
    return (min(values), max(values), math.fsum(values) / len(values), float(len(values)), values[-1])


def _as_columns(folded: Sequence[tuple[float, ...]]) -> Columns:
    return tuple(array("f", column) for column in zip(*folded, strict=True))


def _cut(numbers: list[float], spans: Sequence[Span]) -> list[list[float]]:
    return [numbers[first:end] for first, end in spans]


def _is_level(values: array[float]) -> bool:
    """Whether all values have the same bits, as for limits and idle counters."""
    raw = values.tobytes()
    return raw == raw[: values.itemsize] * len(values)
