"""Growth of processes' counters between two readings, while processes start and end. Pure.

Where: `program_source` computes rates from the growth.

When a process has ended, the kernel adds its processor time and bytes to the counters of the process that reaps it, so
a plain sum would count them twice. If no process reaps it, they vanish, so a plain sum would fall. Therefore the counts
of an ended process are subtracted from the growth of its ancestors, the nearest first. The growth of an ancestor falls
to zero at most, and the rest is subtracted from the next ancestor, because a more distant ancestor may reap an orphan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Count(NamedTuple):
    """A process's counters, including those of reaped children."""

    parent: int
    started_at: int  # start time; with the pid it identifies a process
    values: tuple[float, ...]


def growth(before: Mapping[int, Count], after: Mapping[int, Count]) -> dict[int, tuple[float, ...]]:
    """Return pid -> growth of each counter, without counts of reaped children; never negative.

    The growth of a new process starts at zero. The growth of a process between `before` and its end counts for the
    process that has reaped it, if `after` has that process, and is lost otherwise.
    """
    grown = {pid: list(_raw_growth(count, before.get(pid))) for pid, count in after.items()}
    for pid, gone in before.items():
        if _is_there(pid, gone, after):
            continue
        left = list(gone.values)
        for heir in _living_above(gone, before, after):
            values = grown[heir]
            for index, amount in enumerate(left):
                taken = min(amount, values[index])
                values[index] -= taken
                left[index] -= taken
            if not any(left):
                break
    return {pid: tuple(values) for pid, values in grown.items()}


def _raw_growth(now: Count, then: Count | None) -> Iterator[float]:
    if then is None or then.started_at != now.started_at:
        return iter(now.values)
    return (max(0.0, value - before) for value, before in zip(now.values, then.values, strict=True))


def _is_there(pid: int, count: Count, others: Mapping[int, Count]) -> bool:
    other = others.get(pid)
    return other is not None and other.started_at == count.started_at


def _living_above(gone: Count, before: Mapping[int, Count], after: Mapping[int, Count]) -> Iterator[int]:
    """Yield the living ancestors of an ended process, nearest first."""
    pid = gone.parent
    for _ in range(len(before)):  # parents form no cycle, but entries read at different times may
        above = before.get(pid)
        if above is None:
            return
        if _is_there(pid, above, after):
            yield pid
        pid = above.parent
