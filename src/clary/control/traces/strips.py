"""A rank's window as a strip of cells, each with its longest activity: a timeline in a few hundred bytes. Pure.

Letters: `c` compute, `x` exposed communication, `d` data wait, `.` other times.
"""

from __future__ import annotations

from collections.abc import Mapping

from clary.control.traces.intervals import Intervals

NUM_CELLS = 240
REST = "."


def strip(parts: Mapping[str, Intervals], *, begin: float, end: float) -> str:
    """Return the strip of a window.

    Args:
        parts: letter -> its times; times of different letters do not overlap.
        begin, end: bounds of the window, in the unit of the times.
    """
    width = (end - begin) / NUM_CELLS
    if not width > 0:
        return ""
    covered: dict[str, list[float]] = {letter: [0.0] * NUM_CELLS for letter in parts}
    for letter, times in parts.items():
        cells = covered[letter]
        for early, late in times:
            first, last = _cell(early - begin, width), _cell(late - begin, width)
            for index in range(first, last + 1):
                cell = begin + index * width
                cells[index] += max(0.0, min(late, cell + width) - max(early, cell))
    return "".join(_greatest(covered, index, width) for index in range(NUM_CELLS))


def _cell(distance: float, width: float) -> int:
    return min(NUM_CELLS - 1, max(0, int(distance / width)))


def _greatest(covered: Mapping[str, list[float]], index: int, width: float) -> str:
    shares = {letter: cells[index] for letter, cells in covered.items()}
    shares[REST] = width - sum(shares.values())
    return max(shares, key=lambda letter: shares[letter])
