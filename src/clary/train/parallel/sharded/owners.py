"""Pure assignment of each parameter's optimizer state to a rank."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ownership:
    """The rank that owns each parameter, and the load of each rank.

    Args:
        owners: owning rank of each parameter.
        loads: number of elements that each rank owns.
        reason: the reason for these loads.
    """

    owners: tuple[int, ...]
    loads: tuple[int, ...]
    reason: str


def assign_owners(numels: Sequence[int], num_ranks: int) -> Ownership:
    """Assign whole parameters to ranks: largest first, each to the rank with the least load.

    The greatest load is at most 4/3 - 1/(3 ranks) times the optimum for whole parameters. Ties go to the lowest rank,
    so all ranks compute the same assignment.
    Source: R. L. Graham, Bounds on multiprocessing timing anomalies, 1969.

    Args:
        numels: number of elements of each parameter.
    """
    owners = [0] * len(numels)
    loads = [(0, rank) for rank in range(num_ranks)]
    for number in sorted(range(len(numels)), key=lambda one: (-numels[one], one)):
        load, rank = heapq.heappop(loads)
        owners[number] = rank
        heapq.heappush(loads, (load + numels[number], rank))
    by_rank = tuple(load for load, _ in sorted(loads, key=lambda one: one[1]))
    return Ownership(tuple(owners), by_rank, _reason(numels, by_rank))


def _reason(numels: Sequence[int], loads: Sequence[int]) -> str:
    most, mean = max(loads), statistics.mean(loads)
    said = f"{len(numels)} parameters on {len(loads)} ranks, from {min(loads)} to {most} elements each, mean {mean:.0f}"
    if not most:
        return said
    if len(loads) > 1 and max(numels) == most:
        return f"{said}: the largest parameter alone has {most}, and parameters stay whole"
    return f"{said}: the fullest has {most / mean:.3f} of the mean"
