"""Growth of processes' counters from one look to the next, while processes start and end. Pure.

Where: `program_source` makes rates of it.

Processor time and bytes of a process that has ended are added by the kernel to those of the process that waits for it,
so that a plain sum would count them twice: once while it lived, once again above it. If no process waits for it, they
vanish, so that a plain sum would fall. Therefore the counts of an ended process are subtracted from the growth of its
ancestors: the nearest first, up to the growth of each, because a process further up waits for an orphan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Count(NamedTuple):
    """A process's counters, including those of children that it has waited for."""

    parent: int
    started_at: int  # with the pid it identifies a process
    values: tuple[float, ...]


def growth(before: Mapping[int, Count], after: Mapping[int, Count]) -> dict[int, tuple[float, ...]]:
    """Return pid -> growth of each counter of a process, without inherited counts; never negative.

    The growth of a new process starts at zero. The growth of a process between `before` and its end counts for the
    process that has waited for it, if `after` has that, and is lost otherwise.
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
    """Yield the living ancestors of an ended process, the nearest first."""
    pid = gone.parent
    for _ in range(len(before)):  # parents form no circle, but entries read at different times might
        above = before.get(pid)
        if above is None:
            return
        if _is_there(pid, above, after):
            yield pid
        pid = above.parent
