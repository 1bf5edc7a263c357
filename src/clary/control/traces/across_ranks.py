"""Collectives of all ranks side by side: offsets of their clocks, and the late ranks. Pure.

A collective is identified by its step, its name, and its index among the collectives of that name in the step: ranks
with the same program call the same collectives in the same order. An accelerator reaches a collective later than the
program does, so a kernel is counted in the step in which the program launched it. Late ranks are found only among
collectives that all ranks have recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from clary.contract.deep_profiles import RankProfile
from clary.control.traces.rank_trace import Operation, RankTrace

NUM_SHOWN = 10
ONE_CLOCK = "one clock"
BY_ENDS = "by the ends of collectives"
NOT_ALIGNED = "not aligned"
_LEAST_MATCHED = 3  # minimum number of common collectives for a comparison of clocks

Key = tuple[int, str, int]


@dataclass(frozen=True)
class Marks:
    """Arrival and end times of a rank's collectives, kept after its trace was closed."""

    profile: RankProfile
    arrivals: Mapping[Key, float]
    completions: Mapping[Key, float]


@dataclass(frozen=True)
class Clocks:
    """Offset added to each rank's times, in microseconds, and the method that found it."""

    offsets: Mapping[int, float]
    method: str
    spread_us: float | None = None  # deviation of the collectives' ends after alignment


def marks_of(trace: RankTrace) -> Marks:
    """Return the marks of a trace."""
    return Marks(
        profile=trace.profile,
        arrivals={key: item.begin for key, item in _keyed(trace, trace.arrivals).items()},
        completions={key: item.end for key, item in _keyed(trace, trace.completions).items()},
    )


def set_clocks(marks: Sequence[Marks]) -> Clocks:
    """Return the offsets that convert each rank's times to the first rank's clock.

    Ranks with the same boot id share a machine and its clock. Ranks of different machines end a collective at nearly
    the same time: the difference of their clocks is estimated as the median difference of these end times over all
    common collectives; it counts as 0 if there are fewer than _LEAST_MATCHED of them.
    """
    if not marks:
        return Clocks(offsets={}, method=ONE_CLOCK)
    machines: dict[str, list[Marks]] = {}
    for item in marks:
        machines.setdefault(item.profile.boot_id or f"unknown machine of rank {item.profile.rank}", []).append(item)
    first, *others = machines.values()
    offsets = {item.profile.rank: 0.0 for item in first}
    method, spreads = ONE_CLOCK, [0.0]
    for members in others:
        differences = _differences(first, members)
        offset = median(differences) if len(differences) >= _LEAST_MATCHED else 0.0
        if len(differences) < _LEAST_MATCHED:
            method = NOT_ALIGNED
        else:
            method = BY_ENDS if method != NOT_ALIGNED else method
            spreads.append(median(abs(difference - offset) for difference in differences))
        offsets |= {item.profile.rank: offset for item in members}
    return Clocks(offsets=offsets, method=method, spread_us=max(spreads) if others else None)


def skews(marks: Sequence[Marks], clocks: Clocks) -> dict[str, Any]:
    """Return the spread of arrivals at the collectives that all ranks share, and how often each rank was last."""
    common = set.intersection(*(set(item.arrivals) for item in marks)) if len(marks) > 1 else set()
    rows: list[dict[str, Any]] = []
    last = dict.fromkeys((item.profile.rank for item in marks), 0)
    lateness: dict[int, list[float]] = {item.profile.rank: [] for item in marks}
    for key in sorted(common):
        times = {item.profile.rank: item.arrivals[key] + clocks.offsets[item.profile.rank] for item in marks}
        earliest, latest = min(times.values()), max(times.values())
        late_rank = max(times, key=lambda rank: times[rank])
        last[late_rank] += 1
        for rank, moment in times.items():
            lateness[rank].append(moment - earliest)
        step, name, index = key
        rows.append(
            {"step": step, "name": name[:200], "index": index, "skew_ms": (latest - earliest) / 1000, "last": late_rank}
        )
    behind = {rank: (sum(values) / len(values) / 1000 if values else 0.0) for rank, values in lateness.items()}
    rows.sort(key=lambda row: -row["skew_ms"])
    values = sorted(row["skew_ms"] for row in rows)
    return {
        "num_collectives": len(rows),
        "median_ms": median(values) if values else None,
        "greatest_ms": values[-1] if values else None,
        "last": {str(rank): count for rank, count in last.items()},
        "mean_behind_ms": {str(rank): value for rank, value in behind.items()},
        "greatest": rows[:NUM_SHOWN],
    }


def _keyed(trace: RankTrace, operations: Sequence[Operation]) -> dict[Key, Operation]:
    counts: dict[tuple[int, str], int] = {}
    found: dict[Key, Operation] = {}
    if trace.profile.by_time:
        return found  # ranks have no common step to count from
    for item in operations:
        step = trace.step_at(item.begin if item.asked is None else item.asked)
        if step is None:
            continue
        index = counts.get((step, item.name), 0)
        counts[step, item.name] = index + 1
        found[step, item.name, index] = item
    return found


def _differences(some: Sequence[Marks], others: Sequence[Marks]) -> list[float]:
    """Return for each common collective its end by the clock of `some` minus its end by the clock of `others`."""
    found = []
    reference: dict[Key, float] = {}
    for item in some:
        for key, moment in item.completions.items():
            reference.setdefault(key, moment)
    for item in others:
        found += [reference[key] - moment for key, moment in item.completions.items() if key in reference]
    return found
