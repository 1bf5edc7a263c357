"""Which rank keeps the optimizer's state of which parameter. Pure."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ownership:
    """The rank that owns each parameter, and the load of each rank.

    Args:
        owners: rank by parameter.
        loads: elements by rank.
        reason: why the loads are as they are.
    """

    owners: tuple[int, ...]
    loads: tuple[int, ...]
    reason: str


def assign_owners(numels: Sequence[int], num_ranks: int) -> Ownership:
    """Give whole parameters to ranks: largest first, each to the rank that has least.

    The greatest load is at most 4/3 - 1/(3 ranks) of the least that any assignment of whole parameters reaches. Equal
    parameters go to ranks in the order of the ranks, so all ranks come to the same.
    Source: R. L. Graham, Bounds on multiprocessing timing anomalies, 1969.

    Args:
        numels: elements by parameter.
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
