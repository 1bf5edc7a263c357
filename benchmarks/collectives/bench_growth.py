"""Growth of costs with ranks of one host, with hosts and with parameters, each beside its formula.

`ranks`: all_reduce among 2 to 16 ranks of one host. A small one is a turn of every rank on the machine's cores, a large
one a copy of the array by each. `hosts`: all_reduce among 2 to 16 hosts in namespaces at 1 Gbit/s; the formula of a
large one is that of `allreduce-net`. `parameters`: gradients of 1 to 500 M parameters reduced among two ranks, and
weights of as many saved; both formulas are bytes over the rate of memcpy. gloo and torch.save stand beside ours.

`tools/draw_growth.py` draws the recorded lines for docs/numbers/growth.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.collectives.bench_allreduce_net import least_time
from benchmarks.collectives.collective_compare import Contender, Effort, Series, alternate
from benchmarks.collectives.collective_gang import Gang
from benchmarks.collectives.collective_lab import LabShape, running_lab
from benchmarks.lines import ROOT, Line
from benchmarks.training.bench_checkpoint import save_costs

OURS = "smddp"
KIB, MIB, MILLION = 1 << 10, 1 << 20, 1_000_000
SMALL_BYTES, LARGE_BYTES = 64, 4 * MIB
NUMBERS, QUICK_NUMBERS = (2, 4, 8, 16), (2, 4)  # of ranks, and of hosts
PARAMETERS, QUICK_PARAMETERS = (MILLION, 10 * MILLION, 100 * MILLION, 500 * MILLION), (MILLION, 10 * MILLION)
PARAMETER_BYTES = 4
FEW_FROM_BYTES = 256 * MIB
RATE_MBIT_S = 1000
SEED = 70_000


def run(quick: bool) -> Iterator[Line]:
    """Measure all three."""
    numbers = QUICK_NUMBERS if quick else NUMBERS
    yield from _by_ranks(numbers, quick=quick)
    yield from _by_hosts(numbers, quick=quick)
    parameters = QUICK_PARAMETERS if quick else PARAMETERS
    yield from _by_parameters(parameters, quick=quick)
    yield from _saves(parameters, quick=quick)


def _by_ranks(numbers: tuple[int, ...], *, quick: bool) -> Iterator[Line]:
    turn_s = 0.0  # of one rank, from the fewest
    for num_ranks in numbers:
        with Gang("torch", num_ranks, environment={"GLOO_SOCKET_IFNAME": "lo"}) as gang:
            contenders = _open(gang)
            for num_bytes in (SMALL_BYTES, LARGE_BYTES):
                print(f"{num_ranks} ranks, {num_bytes} bytes", file=sys.stderr)
                series = alternate(contenders, "all_reduce", num_bytes, _effort(num_bytes, quick=quick), seed=SEED)
                if num_bytes == SMALL_BYTES:
                    turn_s = turn_s or series[OURS].median_s / num_ranks
                    formula_s, words = num_ranks * turn_s, "a turn of each rank, as long as one of two ranks"
                else:
                    rate = _copy_rate(gang, num_bytes)
                    formula_s, words = num_bytes / rate, f"one copy by every rank, {rate / 1e9:.2f} GB/s all at once"
                yield _line(f"ranks={num_ranks},bytes={num_bytes}", series, formula_s, words)


def _by_hosts(numbers: tuple[int, ...], *, quick: bool) -> Iterator[Line]:
    turn_s = 0.0
    for num_hosts in numbers:
        shape = LabShape(num_hosts=num_hosts, num_ranks=num_hosts, rate_mbit_s=RATE_MBIT_S)
        with running_lab(shape, with_mpi=False) as lab:
            contenders = _open(lab.torch)
            for num_bytes in (SMALL_BYTES, LARGE_BYTES):
                print(f"{num_hosts} hosts, {num_bytes} bytes", file=sys.stderr)
                series = alternate(contenders, "all_reduce", num_bytes, _effort(num_bytes, quick=quick), seed=SEED)
                formula_s, words = least_time(shape, num_bytes)
                if num_bytes == SMALL_BYTES:  # nothing of it is the link's
                    turn_s = turn_s or series[OURS].median_s / num_hosts
                    formula_s, words = num_hosts * turn_s, "a turn of each host, as long as one of two hosts"
                yield _line(f"hosts={num_hosts},bytes={num_bytes},{shape.case}", series, formula_s, words)


def _by_parameters(parameters: tuple[int, ...], *, quick: bool) -> Iterator[Line]:
    with Gang("torch", 2, environment={"GLOO_SOCKET_IFNAME": "lo"}) as gang:
        contenders = _open(gang)
        for number in parameters:
            num_bytes = PARAMETER_BYTES * number
            print(f"gradients of {number} parameters", file=sys.stderr)
            series = alternate(contenders, "all_reduce", num_bytes, _effort(num_bytes, quick=quick), seed=SEED)
            rate = _copy_rate(gang, min(num_bytes, FEW_FROM_BYTES))
            words = f"one copy by both ranks, {rate / 1e9:.2f} GB/s at once"
            yield _line(f"parameters={number},gradients", series, num_bytes / rate, words)


def _saves(parameters: tuple[int, ...], *, quick: bool) -> Iterator[Line]:
    (ROOT / "build").mkdir(exist_ok=True)  # a disk, where /tmp may be memory
    for number in parameters:
        print(f"weights of {number} parameters saved", file=sys.stderr)
        state_mib = max(1, round(PARAMETER_BYTES * number / MIB))
        with tempfile.TemporaryDirectory(prefix="clary-growth-", dir=ROOT / "build") as folder:
            answer = save_costs(Path(folder), state_mib=state_mib, samples=2 if quick else 4)
        yield Line(
            case=f"parameters={number},save",
            metric="stall_s",
            unit="s",
            better="lower",
            ours=statistics.median(answer["stall_s"]),
            peers={
                "torch.save": statistics.median(answer["torch_save_s"]),
                "torch async_save": statistics.median(answer["async_stall_s"]),
            },
            bound=statistics.median(answer["copy_s"]),
            bound_note="one copy of the bytes in memory",
            samples=len(answer["stall_s"]),
            verified=answer["verified"],
        )


def _open(gang: Gang) -> list[Contender]:
    gang.ask({"do": "open", "door": OURS, "backend": "smddp", "environment": {}})
    return [Contender(OURS, gang, OURS), Contender(f"gloo (torch {gang.about['torch']})", gang, "gloo")]


def _effort(num_bytes: int, *, quick: bool) -> Effort:
    return Effort(2, 2) if quick or num_bytes >= FEW_FROM_BYTES else Effort(5, 3)


def _copy_rate(gang: Gang, num_bytes: int) -> float:
    """Return bytes a second of memcpy by the slowest rank, all at once."""
    answers = gang.ask({"do": "copy", "num_bytes": num_bytes, "num_samples": 3, "is_alone": False})
    slowest = [min(rates) for rates in zip(*(answer["bytes_per_s"] for answer in answers), strict=True)]
    return float(statistics.median(slowest))


def _line(case: str, series: Mapping[str, Series], formula_s: float, words: str) -> Line:
    ours = series[OURS]
    problems = [problem for result in series.values() for problem in result.problems]
    for problem in problems[:5]:
        print(f"WRONG {case}: {problem}", file=sys.stderr)
    return Line(
        case=case,
        metric="time_s",
        unit="s",
        better="lower",
        ours=ours.median_s,
        peers={name: result.median_s for name, result in series.items() if name != OURS},
        peer_note="gloo runs in our processes on our buffers",
        bound=formula_s,
        bound_note=f"{words}; {os.cpu_count()} cores",
        samples=len(ours.times_s),
        spread=ours.spread,
        verified=not problems,
    )
