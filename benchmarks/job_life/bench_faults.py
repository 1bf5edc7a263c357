"""Faults by kind that strike a service at work: how many it survived, and how many lost, doubled or hung something."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.lines import Line
from benchmarks.service import TRAIN_PYTHON
from clary.testing.faults.fault_counts import KindCounts
from clary.testing.faults.fault_runner import run_faults

SEED = 7
NUM_FAULTS, NUM_QUICK = 1000, 25


def run(quick: bool) -> Iterator[Line]:
    """Let faults strike; one line a kind, and one for all."""
    num_faults = NUM_QUICK if quick else NUM_FAULTS
    result = run_faults(SEED, num_faults, python=str(TRAIN_PYTHON))
    print(result.table(), file=sys.stderr)
    for counts in (*result.counts, result.total):
        yield _line(counts, {"seed": SEED, "jobs": result.statuses, "wall_s": round(result.wall_s)})


def _line(counts: KindCounts, details: dict[str, object]) -> Line:
    harms = {"lost": counts.lost, "doubled": counts.doubled, "hung": counts.hung}
    return Line(
        case=f"kind={counts.kind}",
        metric="survived",
        unit="faults",
        better="higher",
        ours=counts.survived,
        bound=counts.injected,
        bound_note="every fault that struck",
        goal="0 lost, 0 doubled, 0 hung",
        met=counts.is_clean,
        samples=counts.injected,
        verified=counts.is_clean,
        details={"injected": counts.injected, **harms, **details},
    )
