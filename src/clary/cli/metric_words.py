"""Texts of `clary metrics JOB`: readable units, one line for each series, spark lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from clary.cli.tables import duration, table, visible

SPARKS = "".join(chr(0x2581 + height) for height in range(8))
SPARK_WIDTH = 16
GAP = " "
FACTOR = 1000.0
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
MS_PER_S = 1000
# Suffix of a quantity's name -> its unit; the longest matching suffix counts.
UNITS = {"_percent": "%", "_bytes": "B", "_bytes_s": "B/s", "_w": "W", "_c": "C", "_ms": "ms", "_s": "s"}
_SCOPE_ORDER = {"host": 0, "gpu": 1, "rank": 2, "agent": 3, "machine": 4}
_ALSO_BYTES = ("memory", "disk_used")  # quantities measured in bytes and in percent of the total
_MEANT = {"host": ""}

At, Least, Greatest, Mean, Count, Last = range(6)  # indices of a point's numbers
Points = Sequence[Sequence[float]]


def metrics_text(page: Mapping[str, Any], *, lines: bool, names: str | None = None) -> str:
    """Return the table of a page of series.

    Args:
        page: the service's page of series.
        lines: whether spark lines are added.
        names: requested patterns; None if no pattern was given.
    """
    span_s = (page["until_ms"] - page["since_ms"]) / MS_PER_S
    head = f"{page['job']}  {page['status']}, {duration(page['age_s'])}"
    if not page["series"]:
        what = "anything" if names is None else f"anything called {visible(names)}"
        hint = "" if names is None else "; --names '*' shows all that is measured"
        return f"{head}\nno host has measured {what} in these {duration(span_s)}{hint}"
    header = ["HOST", "METRIC", "LAST", "MEAN", "MAX"] + ([f"LAST {duration(span_s).upper()}"] if lines else [])
    rows = []
    for one in sorted(page["series"], key=_order):
        unit = unit_of(one["name"])
        points = [point for point in one["points"] if None not in point]
        if not points:
            continue
        count = sum(point[Count] for point in points)
        mean = sum(point[Mean] * point[Count] for point in points) / count
        greatest = max(point[Greatest] for point in points)
        numbers = (points[-1][Last], mean, greatest)
        row = [one["host"], words_of(one["name"]), *(shown(number, unit) for number in numbers)]
        rows.append(row + ([spark(points, page)] if lines else []))
    text = f"{head}\n\n{table(header, rows)}"
    if page["num_dropped"]:
        text += f"\n\n{page['num_dropped']} rows were given up by agents while the service did not take them"
    return "\n".join([text, *page["damaged"]])


def words_of(name: str) -> str:
    """Return `rank 3 cpu` of `rank-3/cpu_percent`."""
    scope, _, quantity = name.partition("/")
    for ending in sorted(UNITS, key=len, reverse=True):
        if quantity.endswith(ending) and len(quantity) > len(ending):
            quantity = quantity.removesuffix(ending)
            if ending == "_percent" and quantity in _ALSO_BYTES:
                quantity += " share"
            break
    where = _MEANT.get(scope, scope.replace("-", " "))
    return f"{where} {quantity.replace('_', ' ')}".strip()


def unit_of(name: str) -> str:
    """Return the unit that a series' name ends with; empty for a number without unit."""
    fitting = [ending for ending in UNITS if name.endswith(ending)]
    return UNITS[max(fitting, key=len)] if fitting else ""


def shown(number: float, unit: str) -> str:
    """Return a number with its unit: `182 %`, `3.1 GB`, `41 MB/s`, `4.2 ms`."""
    if unit == "s" and 0 < abs(number) < 1:  # durations below one second
        number, unit = number * MS_PER_S, "ms"
    if unit in ("B", "B/s"):
        step = 0
        while abs(number) >= FACTOR and step < len(BYTE_UNITS) - 1:
            number /= FACTOR
            step += 1
        return f"{_digits(number)} {BYTE_UNITS[step]}{unit.removeprefix('B')}"
    return f"{_digits(number)} {unit}".strip()


def _digits(number: float) -> str:
    """Return a number with about three digits, never with an exponent."""
    places = 0 if number == int(number) or abs(number) >= 10 else 1 if abs(number) >= 1 else 2
    return f"{number:.{places}f}"


def spark(points: Points, page: Mapping[str, Any]) -> str:
    """Return the means over time as a line of bars, scaled from the least mean to the greatest; a gap is left blank."""
    since_ms, until_ms = page["since_ms"], page["until_ms"]
    width_ms = max(1.0, (until_ms - since_ms) / SPARK_WIDTH)
    cells: list[list[float]] = [[] for _ in range(SPARK_WIDTH)]
    for point in points:
        cells[min(SPARK_WIDTH - 1, max(0, int((point[At] - since_ms) / width_ms)))].append(point[Mean])
    means = [sum(cell) / len(cell) if cell else None for cell in cells]
    known = [mean for mean in means if mean is not None]
    least, span = min(known), max(known) - min(known)
    steps = len(SPARKS) - 1
    bars = (
        GAP if mean is None else SPARKS[round((mean - least) / span * steps)] if span else SPARKS[steps // 2]
        for mean in means
    )
    return "".join(bars)


def _order(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a sort key: by the host's number, then the host's own series, then GPUs, then ranks."""
    scope = one["name"].partition("/")[0]
    known = _SCOPE_ORDER.get(scope.partition("-")[0], len(_SCOPE_ORDER))
    return (_number_in(one["host"]), one["host"], known, scope.partition("-")[0], _number_in(scope), one["name"])


def _number_in(text: str) -> int:
    digits = re.search(r"[0-9]{1,15}", text)
    return int(digits[0]) if digits else 0
