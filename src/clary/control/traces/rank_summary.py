"""Shares of compute, communication and waits in a rank's window. Pure.

Formulas, over the window from its first bound to its last:
    compute         times at which an operator of torch (`aten::mm`) runs on any thread, or another operation without
        nested operations; calls of collectives and work of the data loader do not count. If the trace has kernels of an
        accelerator, only these count.
    communication   times at which a collective occupies the rank
    exposed         communication minus compute and data wait: the part that no other activity hides
    data wait       times within the data loader's `__next__`
    rest            remaining time: Python between operations, other programs, other waits
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from clary.control.traces.intervals import total, union, within, without
from clary.control.traces.rank_trace import RankTrace, is_collective, is_work, self_times
from clary.control.traces.strips import strip

NUM_TOP = 10
US_PER_MS = 1000.0


def summarize(trace: RankTrace) -> dict[str, Any]:
    """Return the figures of one rank; times in milliseconds, shares of the window from 0 to 1."""
    bounds = trace.bounds
    begin, end = bounds[0], bounds[-1]
    window = max(end - begin, 1e-9)
    nested = self_times([item for item in trace.operations if item.begin < end and item.end > begin])
    loading = within(((item.begin, item.end) for item in trace.loading), begin, end)
    if trace.kernels:
        busy = [(item.begin, item.end) for item in trace.kernels]
    else:
        busy = [(item.begin, item.end) for item, _, is_leaf in nested if is_work(item.name, is_leaf=is_leaf)]
    calls = [] if trace.kernels else [item for item in trace.operations if is_collective(item.name)]
    elsewhere = union([*loading, *within(((item.begin, item.end) for item in calls), begin, end)])
    compute = without(within(busy, begin, end), elsewhere)
    communication = within(((item.begin, item.end) for item in trace.communication), begin, end)
    exposed = without(communication, union([*compute, *loading]))
    num_steps = 1 if trace.profile.by_time else max(1, len(bounds) - 1)
    lengths = [(late - early) / US_PER_MS for early, late in pairwise(bounds)]
    return {
        "num_steps": 0 if trace.profile.by_time else num_steps,
        "first_step": trace.profile.first_step,
        "window_ms": window / US_PER_MS,
        "step_ms": None if trace.profile.by_time else window / US_PER_MS / num_steps,
        "longest_step_ms": None if trace.profile.by_time else max(lengths),
        "compute_share": total(compute) / window,
        "communication_share": total(communication) / window,
        "exposed_communication_share": total(exposed) / window,
        "data_wait_share": total(loading) / window,
        "rest_share": max(0.0, 1 - (total(compute) + total(exposed) + total(loading)) / window),
        "num_collectives": sum(1 for item in trace.arrivals if begin <= item.begin < end),
        "on_accelerator": bool(trace.kernels),
        "top": _top(trace, nested, begin=begin, end=end),
        "is_cut": trace.is_cut,
        "strip": strip({"c": compute, "x": exposed, "d": loading}, begin=begin, end=end),
        "bounds_ms": [] if trace.profile.by_time else [round((bound - begin) / US_PER_MS, 3) for bound in bounds],
    }


def _top(trace: RankTrace, nested: Any, *, begin: float, end: float) -> list[Mapping[str, Any]]:
    """Return the operations with the longest total time outside nested operations; kernels if the trace has any."""
    sums: dict[str, list[float]] = {}
    if trace.kernels:
        timed = [(item, item.end - item.begin) for item in [*trace.kernels, *trace.completions]]
    else:
        # The work of a process group's threads is not subtracted, because the program may compute meanwhile.
        timed = [(item, seconds) for item, seconds, _ in nested]
        timed += [(item, item.end - item.begin) for item in trace.completions]
    for item, took in timed:
        if begin <= item.begin < end:
            entry = sums.setdefault(item.name, [0.0, 0])
            entry[0] += took
            entry[1] += 1
    ranked = sorted(sums.items(), key=lambda pair: -pair[1][0])[:NUM_TOP]
    window = max(end - begin, 1e-9)
    return [
        {"name": name[:200], "count": int(count), "self_ms": took / US_PER_MS, "share": took / window}
        for name, (took, count) in ranked
    ]
