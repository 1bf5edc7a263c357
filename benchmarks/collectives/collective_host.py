"""Collectives among the ranks of one host: ours and gloo in the same processes, MPI in processes of the same shape.

Where: `bench_allreduce_host`, `bench_allgather_host` and `bench_reducescatter_host` say sizes and goals.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.collectives.collective_compare import Contender, Effort, Series, alternate
from benchmarks.collectives.collective_gang import Gang
from benchmarks.lines import Line

OURS, THIN = "smddp", "communicator"  # as a backend of torch.distributed, and without torch around it
KIB, MIB = 1 << 10, 1 << 20
LARGE_BYTES = 64 * MIB  # from here on samples are few: each takes long, and differs little
BOUND_FROM_BYTES = 64 * KIB  # below, a call is waiting for others and not copying
COPY_GOAL_FROM_BYTES = 16 * MIB
COPY_SAMPLES = 2  # a round
MOVED = 2.0  # times the array: what a rank of all_reduce writes by way of shared memory, in and out again
NUM_RANKS = (2, 4)
SEED = 20_000


@dataclass(frozen=True)
class HostGoal:
    """At so many ranks and bytes, at least so many times as fast as gloo."""

    num_ranks: int
    num_bytes: int
    times_gloo: float


@dataclass(frozen=True)
class HostBenchmark:
    """One collective.

    Args:
        sizes: bytes of the whole array, as nccl-tests counts.
        copy_goal: at least this part of memcpy's rate, from COPY_GOAL_FROM_BYTES on; None sets no goal.
    """

    collective: str
    sizes: Sequence[int]
    goals: Sequence[HostGoal]
    copy_goal: float | None = None

    def least_copied(self, num_ranks: int) -> float:
        """Least traffic of a rank in its own buffers, as bytes of a memcpy over those of the array."""
        return {
            "all_reduce": 1.0,  # the whole array is read and written
            "all_gather": 1.0,  # the whole array is written, from as many bytes elsewhere
            "reduce_scatter": (1 + 1 / num_ranks) / 2,  # the whole array is read, the own chunk written
        }[self.collective]

    def bus_factor(self, num_ranks: int) -> float:
        """Of nccl-tests: bus bandwidth is bytes over time, times this."""
        return (2 if self.collective == "all_reduce" else 1) * (num_ranks - 1) / num_ranks


def run_on_host(benchmark: HostBenchmark, *, quick: bool) -> Iterator[Line]:
    """Measure every size with every number of ranks; two lines each: time, and bus bandwidth against the bound."""
    for num_ranks in NUM_RANKS[:1] if quick else NUM_RANKS:
        with Gang("torch", num_ranks, environment={"GLOO_SOCKET_IFNAME": "lo"}) as torch, Gang("mpi", num_ranks) as mpi:
            for door in (OURS, THIN):
                torch.ask({"do": "open", "door": door, "backend": door, "environment": {}})
            mpi_name = mpi.about["mpi"]
            contenders = [
                Contender(OURS, torch, OURS),
                Contender(THIN, torch, THIN),
                Contender(f"gloo (torch {torch.about['torch']})", torch, "gloo"),
                Contender(mpi_name, mpi, "mpi"),
            ]
            for num_bytes in benchmark.sizes:
                if num_bytes < num_ranks * 4 and benchmark.collective != "all_reduce":
                    continue
                print(f"{benchmark.collective} {num_ranks} ranks {num_bytes} bytes", file=sys.stderr)
                few = Effort(2, 2) if quick else Effort(6, 2)
                effort = few if quick or num_bytes >= LARGE_BYTES else Effort(8, 4)
                copy = _CopyRates(torch, num_bytes) if num_bytes >= BOUND_FROM_BYTES else None
                series = alternate(
                    contenders,
                    benchmark.collective,
                    num_bytes,
                    effort,
                    seed=SEED + num_ranks,
                    after_round=copy.measure if copy else None,
                )
                yield from _lines(benchmark, num_ranks, num_bytes, series, copy)


class _CopyRates:
    """Bytes per second of memcpy with buffers of the size under test, measured between the contenders' turns."""

    def __init__(self, gang: Gang, num_bytes: int) -> None:
        self._gang = gang
        self._order = {"do": "copy", "num_bytes": num_bytes, "num_samples": COPY_SAMPLES}
        self._alone: list[float] = []
        self._together: list[float] = []

    def measure(self) -> None:
        self._alone += self._gang.ask(self._order | {"is_alone": True})[0]["bytes_per_s"]
        answers = self._gang.ask(self._order | {"is_alone": False})
        self._together += [min(rates) for rates in zip(*(answer["bytes_per_s"] for answer in answers), strict=True)]

    @property
    def alone(self) -> float:
        """Of one rank while the others sleep."""
        return statistics.median(self._alone)

    @property
    def together(self) -> float:
        """Of the slowest of all ranks at once."""
        return statistics.median(self._together)


def _lines(
    benchmark: HostBenchmark, num_ranks: int, num_bytes: int, series: dict[str, Series], copy: _CopyRates | None
) -> Iterator[Line]:
    case = f"ranks={num_ranks},bytes={num_bytes}"
    others = {name: result for name, result in series.items() if name not in (OURS, THIN)}
    problems = [problem for result in series.values() for problem in result.problems]
    for problem in problems[:5]:
        print(f"WRONG {case}: {problem}", file=sys.stderr)
    bound_s, bound_note = None, ""
    if copy is not None:
        least = benchmark.least_copied(num_ranks)
        bound_s = least * num_bytes / copy.together
        bound_note = (
            f"a rank's own buffers once, {least:g} x bytes of memcpy; memcpy of this size, measured in turns: "
            f"{copy.together / 1e9:.2f} GB/s a rank with all at once, {copy.alone / 1e9:.2f} alone"
        )
    peers = {name: result.median_s for name, result in others.items()}
    gloo_s = next(median for name, median in peers.items() if name.startswith("gloo"))
    for door, line_case in ((OURS, case), (THIN, f"{case},door={THIN}")):
        ours = series[door]
        goals = ["never slower than the best peer"]
        is_met = [ours.median_s <= min(peers.values())]
        for goal in benchmark.goals:
            if (goal.num_ranks, goal.num_bytes) == (num_ranks, num_bytes):
                goals.append(f">= {goal.times_gloo:g}x gloo")
                is_met.append(gloo_s / ours.median_s >= goal.times_gloo)
        yield Line(
            case=line_case,
            metric="time_s",
            unit="s",
            better="lower",
            ours=ours.median_s,
            peers=peers,
            peer_note="gloo runs in our processes on our buffers, MPI through mpi4py in as many processes of its own",
            bound=bound_s,
            bound_note=bound_note,
            goal=" and ".join(goals),
            met=all(is_met),
            samples=len(ours.times_s),
            spread=ours.spread,
            verified=not problems,
            details={
                "times_gloo": gloo_s / ours.median_s,
                "spread_of_peers": {name: result.spread for name, result in others.items()},
                "fast_s": {door: ours.fast_s} | {name: result.fast_s for name, result in others.items()},
                "problems": len(problems),
            },
        )
    if copy is None or bound_s is None:
        return
    ours = series[OURS]
    bus_bytes = benchmark.bus_factor(num_ranks) * num_bytes / 1e9
    over_memcpy = MOVED * num_bytes / ours.median_s / copy.together
    has_goal = benchmark.copy_goal is not None and num_bytes >= COPY_GOAL_FROM_BYTES
    yield Line(
        case=case,
        metric="busbw_gb_s",
        unit="GB/s",
        better="higher",
        ours=bus_bytes / ours.median_s,
        peers={name: bus_bytes / median for name, median in peers.items()},
        bound=bus_bytes / bound_s,
        bound_note=bound_note,
        goal=f">= {benchmark.copy_goal:g} of memcpy's rate, {MOVED:g} x bytes moved" if has_goal else "",
        met=over_memcpy >= (benchmark.copy_goal or 0) if has_goal else None,
        samples=len(ours.times_s),
        spread=ours.spread,
        verified=not problems,
        details={"moved_over_memcpy": over_memcpy} if has_goal else {},
    )
