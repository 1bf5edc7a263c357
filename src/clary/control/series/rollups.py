"""Roll-ups: of the values in a span of time the least, the greatest, their mean, their number and the last. Pure.

Roll-ups of roll-ups are those of the values themselves, but for rounding; so rows are folded once, and what spans a
border may be folded in two halves.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import groupby

from clary.control.series.tables import ROLL_UP_PARTS, ROW_PARTS, SeriesTable

Span = tuple[int, int]  # of row numbers, the end exclusive


def fold(table: SeriesTable, step_ms: int) -> SeriesTable:
    """Return the roll-ups of spans of `step_ms`, which begin at its multiples since 1970; empty spans are left out."""
    starts, spans = _spans(table.at_ms, step_ms)
    fold_column = _fold_values if table.parts == ROW_PARTS else _fold_roll_ups
    columns = {name: fold_column(parts, spans) for name, parts in table.columns.items()}
    return SeriesTable(at_ms=starts, columns=columns, parts=ROLL_UP_PARTS)


def _spans(at_ms: Sequence[int], step_ms: int) -> tuple[array[int], list[Span]]:
    starts, spans, first = array("q"), [], 0
    for number, moments in groupby(at_ms, key=lambda moment: moment // step_ms):
        end = first + sum(1 for _ in moments)
        starts.append(number * step_ms)
        spans.append((first, end))
        first = end
    return starts, spans


def _fold_values(parts: tuple[array[float], ...], spans: Sequence[Span]) -> tuple[array[float], ...]:
    (values,) = parts
    has_gaps = any(map(math.isnan, values))
    results = tuple(array("f") for _ in ROLL_UP_PARTS)
    for first, end in spans:
        piece: Sequence[float] = values[first:end]
        if has_gaps:
            piece = [value for value in piece if value == value]
        _append(results, _of_values(piece))
    return results


def _of_values(values: Sequence[float]) -> tuple[float, ...]:
    if not values:
        return (math.nan, math.nan, math.nan, 0.0, math.nan)
    return (min(values), max(values), math.fsum(values) / len(values), float(len(values)), values[-1])


def _fold_roll_ups(parts: tuple[array[float], ...], spans: Sequence[Span]) -> tuple[array[float], ...]:
    least, greatest, mean, count, last = parts
    results = tuple(array("f") for _ in ROLL_UP_PARTS)
    for first, end in spans:
        rows = [row for row in range(first, end) if count[row] > 0]
        if not rows:
            _append(results, _of_values(()))
            continue
        total = math.fsum(count[row] for row in rows)
        _append(
            results,
            (
                min(least[row] for row in rows),
                max(greatest[row] for row in rows),
                math.fsum(mean[row] * count[row] for row in rows) / total,
                total,
                last[rows[-1]],
            ),
        )
    return results


def _append(results: tuple[array[float], ...], values: Sequence[float]) -> None:
    for column, value in zip(results, values, strict=True):
        column.append(value)
