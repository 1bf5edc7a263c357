"""How much is lost by the choice of the algorithm: each one forced, in turns with the one that the cost model takes.

Regret is the time of the chosen algorithm over that of the fastest, less 1. All groups live in the same processes.
Samples of groups that run the same algorithm count as one: a group that chose it, one that was told to, and one that
was told to take another which cannot serve. Where two algorithms are equally fast, noise alone gives some regret.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.collectives.collective_compare import Contender, Effort, Series, alternate
from benchmarks.collectives.collective_gang import Gang
from benchmarks.collectives.collective_lab import LabShape, running_lab
from benchmarks.lines import Line, median_and_spread

CHOSEN = "chosen"
WITHIN_HOST = ("shm-oneshot", "shm-twophase")
BETWEEN_HOSTS = ("oneshot", "direct", "ring", "halving-doubling")
KIB, MIB = 1 << 10, 1 << 20
GOAL_PERCENT = 10.0
LARGE_BYTES = 4 * MIB
SEED = 40_000


@dataclass(frozen=True)
class Topology:
    """Ranks and the network between them; `shape` None is one host."""

    num_ranks: int
    shape: LabShape | None
    algorithms: Sequence[str]
    sizes: Sequence[int]

    @property
    def case(self) -> str:
        """The stable words of a result line."""
        hosts = 1 if self.shape is None else self.shape.num_hosts
        return f"hosts={hosts},ranks={self.num_ranks}{',' + self.shape.case if self.shape else ''}"


def _between(num_hosts: int, num_ranks: int, sizes: Sequence[int], *, delay_ms: float = 0.0) -> Topology:
    shape = LabShape(num_hosts=num_hosts, num_ranks=num_ranks, rate_mbit_s=1000, delay_ms=delay_ms)
    return Topology(num_ranks, shape, BETWEEN_HOSTS, sizes)


NEAR_SIZES = (4, KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
# Enough to take the link from `clary_switch`: a token bucket lets 256 KiB pass at once, which no real link does.
NEAR_DELAY_MS = 0.05
FAR_SIZES = (4, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)
TOPOLOGIES = (
    Topology(2, None, WITHIN_HOST, NEAR_SIZES),
    Topology(4, None, WITHIN_HOST, NEAR_SIZES),
    _between(2, 4, NEAR_SIZES, delay_ms=NEAR_DELAY_MS),
    _between(4, 4, NEAR_SIZES, delay_ms=NEAR_DELAY_MS),
    _between(4, 4, FAR_SIZES, delay_ms=5),
    _between(8, 8, FAR_SIZES, delay_ms=1),
)
QUICK = (
    Topology(2, None, WITHIN_HOST, (KIB, MIB)),
    _between(2, 2, (KIB, MIB)),
)


def run(quick: bool) -> Iterator[Line]:
    """Measure every topology."""
    for topology in QUICK if quick else TOPOLOGIES:
        with _gang(topology) as gang:
            gang.ask({"do": "open", "door": CHOSEN, "backend": "communicator", "environment": {}})
            for name in topology.algorithms:
                environment = {"CLARY_COLLECTIVE_ALGORITHM": name}
                gang.ask({"do": "open", "door": name, "backend": "communicator", "environment": environment})
            contenders = [Contender(name, gang, name) for name in (CHOSEN, *topology.algorithms)]
            for num_bytes in topology.sizes:
                print(f"all_reduce {topology.case} {num_bytes} bytes", file=sys.stderr)
                effort = Effort(2, 2) if quick else Effort(4, 2) if num_bytes >= LARGE_BYTES else Effort(8, 3)
                series = alternate(contenders, "all_reduce", num_bytes, effort, seed=SEED)
                reasons = {
                    name: gang.ask({"do": "explain", "door": name, "num_bytes": num_bytes})[0]["text"]
                    for name in series
                }
                yield _line(topology, num_bytes, series, reasons)


@contextlib.contextmanager
def _gang(topology: Topology) -> Iterator[Gang]:
    if topology.shape is None:
        with Gang("torch", topology.num_ranks, environment={"GLOO_SOCKET_IFNAME": "lo"}) as gang:
            yield gang
    else:
        with running_lab(topology.shape, with_mpi=False) as lab:
            yield lab.torch


def _line(topology: Topology, num_bytes: int, series: dict[str, Series], reasons: dict[str, str]) -> Line:
    times_s: dict[str, list[float]] = {}
    for name, result in series.items():
        times_s.setdefault(reasons[name].split()[0], []).extend(result.times_s)
    chosen = reasons[CHOSEN].split()[0]
    medians_s = {algorithm: statistics.median(times) for algorithm, times in times_s.items()}
    regret_percent = (medians_s[chosen] / min(medians_s.values()) - 1) * 100
    problems = [problem for result in series.values() for problem in result.problems]
    for problem in problems[:5]:
        print(f"WRONG {topology.case}: {problem}", file=sys.stderr)
    return Line(
        case=f"{topology.case},bytes={num_bytes}",
        metric="regret_percent",
        unit="%",
        better="lower",
        ours=regret_percent,
        peer_note="the peers are the other algorithms: details",
        goal=f"<= {GOAL_PERCENT:g}",
        met=regret_percent <= GOAL_PERCENT,
        samples=len(times_s[chosen]),
        spread=median_and_spread(times_s[chosen])[1],
        verified=not problems,
        details={"chosen": reasons[CHOSEN], "medians_s": medians_s},
    )
