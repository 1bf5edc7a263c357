"""How much counters of processes have grown from one look to the next, though processes come and go. Pure.

Where: `program_source` makes rates of it.

Processor time and bytes of a process that has ended are added by the kernel to those of the process that waits for it,
so that a plain sum would count them twice: once while it lived, once again above it. If no process waits for it, they
vanish, so that a plain sum would fall. Therefore what a process had before it ended is taken off the growth of those
above it: the nearest first, as far as each has grown, because an orphan is waited for by a process further up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Count(NamedTuple):
    """A process's counters, those of children that it has waited for included."""

    parent: int
    started_at: int  # with the pid it names a process for good
    values: tuple[float, ...]


def growth(before: Mapping[int, Count], after: Mapping[int, Count]) -> dict[int, tuple[float, ...]]:
    """Return pid -> growth of each counter of a process, without inherited counts; never negative.

    A process that was not there before has grown from nothing. What one has done between `before` and its end counts
    at the process that has waited for it, if that is among these, and is lost otherwise.
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
    """Give the processes above one that has ended which still live, the nearest first."""
    pid = gone.parent
    for _ in range(len(before)):  # parents cannot lead in a circle, but what was read one by one might
        above = before.get(pid)
        if above is None:
            return
        if _is_there(pid, above, after):
            yield pid
        pid = above.parent
