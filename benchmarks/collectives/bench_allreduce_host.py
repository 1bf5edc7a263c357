"""all_reduce among 2 and 4 ranks of one host, 4 B to 128 MiB, against gloo and MPI."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.collectives.collective_host import KIB, MIB, HostBenchmark, HostGoal, run_on_host
from benchmarks.lines import Line

SIZES = (4, 64, 1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB)
QUICK_SIZES = (4, 64 * KIB, 4 * MIB)
GOALS = (HostGoal(2, 32 * MIB, 5), HostGoal(2, 64 * KIB, 8), HostGoal(4, MIB, 8))


def run(quick: bool) -> Iterator[Line]:
    """Measure."""
    sizes = QUICK_SIZES if quick else SIZES
    yield from run_on_host(HostBenchmark("all_reduce", sizes, GOALS, copy_goal=0.8), quick=quick)
