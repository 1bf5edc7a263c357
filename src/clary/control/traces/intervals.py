"""Sets of times as sorted, separate intervals, in microseconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Intervals = list[tuple[float, float]]


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """Return all times that lie in any of the intervals."""
    joined: Intervals = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        elif end > begin:
            joined.append((begin, end))
    return joined


def without(some: Intervals, others: Intervals) -> Intervals:
    """Return the times of `some` outside all `others`; both arguments are results of `union`."""
    left: Intervals = []
    index = 0
    for begin, end in some:
        while index < len(others) and others[index][1] <= begin:
            index += 1
        at, position = begin, index
        while position < len(others) and others[position][0] < end:
            if others[position][0] > at:
                left.append((at, others[position][0]))
            at = max(at, others[position][1])
            position += 1
        if at < end:
            left.append((at, end))
    return left


def within(intervals: Iterable[tuple[float, float]], begin: float, end: float) -> Intervals:
    """Return the union of the intervals' parts between two times.

    Args:
        intervals: in any order; they may overlap.
        begin: microseconds.
        end: microseconds.
    """
    return union((max(begin, first), min(end, last)) for first, last in intervals if first < end and last > begin)


def total(intervals: Intervals) -> float:
    """Return the sum of the intervals' lengths."""
    return sum(end - begin for begin, end in intervals)
