"""reduce_scatter among 2 and 4 ranks of one host, 1 KiB to 128 MiB in all, against gloo and MPI."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.collectives.collective_host import KIB, MIB, HostBenchmark, HostGoal, run_on_host
from benchmarks.lines import Line

SIZES = (1 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB)
QUICK_SIZES = (1 * KIB, 64 * KIB, 4 * MIB)
GOALS = (HostGoal(2, 16 * MIB, 10), HostGoal(4, 16 * MIB, 10))


def run(quick: bool) -> Iterator[Line]:
    """Measure."""
    sizes = QUICK_SIZES if quick else SIZES
    yield from run_on_host(HostBenchmark("reduce_scatter", sizes, GOALS), quick=quick)
