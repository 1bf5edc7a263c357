"""all_reduce between hosts: several ranks a host at 1 Gbit/s, eight hosts far apart, one rank a host against the wire.

Hosts are network namespaces on this machine (`clary.testing.lab_network`), rates are token buckets, delays come from
`clary_switch`. Bytes are read from the hosts' interfaces. Our groups are told the link's rate and delay.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.collectives.collective_compare import Contender, Effort, Series, alternate
from benchmarks.collectives.collective_lab import LabShape, running_lab
from benchmarks.lines import Line
from clary.control.engines.local.network.network_building import burst_bytes

OURS = "smddp"
KIB, MIB = 1 << 10, 1 << 20
DDP_BUCKET_BYTES = 25 * MIB
BYTES_FROM = MIB  # below, headers are a large part of what passes a link
LARGE_BYTES = 64 * MIB
# Of a frame of 1514 bytes 1448 are payload: Ethernet, IP and TCP with time stamps take the rest, and token buckets and
# the switch count them for every frame, also of those that the kernel handles in one piece.
PAYLOAD_SHARE = 1448 / 1514
SEED = 30_000


@dataclass(frozen=True)
class NetBenchmark:
    """One shape with its sizes and goals; a goal of None is no goal."""

    shape: LabShape
    sizes: Sequence[int]
    times_gloo: float | None = None
    goal_from_bytes: int = 0
    wire_goal: float | None = None  # part of the link's rate
    bytes_goal: float | None = None  # part by which bytes on a link may differ from the least


BENCHMARKS = (
    NetBenchmark(
        LabShape(num_hosts=2, num_ranks=8, rate_mbit_s=1000),
        (64 * KIB, MIB, DDP_BUCKET_BYTES, 32 * MIB),
        times_gloo=1.6,
        goal_from_bytes=DDP_BUCKET_BYTES,
        bytes_goal=0.02,
    ),
    NetBenchmark(
        LabShape(num_hosts=8, num_ranks=8, rate_mbit_s=1000, delay_ms=5),
        (4, KIB, 16 * KIB, 64 * KIB, 256 * KIB),
        times_gloo=4,
    ),
    *(
        NetBenchmark(
            LabShape(num_hosts=2, num_ranks=2, rate_mbit_s=rate_mbit_s),
            (MIB, 32 * MIB, 128 * MIB),
            goal_from_bytes=32 * MIB,
            wire_goal=0.95,
            bytes_goal=0.02,
        )
        for rate_mbit_s in (1000, 5000)
    ),
)
QUICK = (
    NetBenchmark(LabShape(num_hosts=2, num_ranks=2, rate_mbit_s=1000), (64 * KIB, 4 * MIB), bytes_goal=0.02),
    NetBenchmark(LabShape(num_hosts=3, num_ranks=3, rate_mbit_s=1000, delay_ms=5), (KIB,), times_gloo=4),
)


def run(quick: bool) -> Iterator[Line]:
    """Measure every shape."""
    for benchmark in QUICK if quick else BENCHMARKS:
        yield from _run_shape(benchmark, quick=quick)


def _run_shape(benchmark: NetBenchmark, *, quick: bool) -> Iterator[Line]:
    shape = benchmark.shape
    with running_lab(shape, with_mpi=True) as lab:
        lab.torch.ask({"do": "open", "door": OURS, "backend": "smddp", "environment": {}})
        assert lab.mpi is not None
        contenders = [
            Contender(OURS, lab.torch, OURS),
            Contender(f"gloo (torch {lab.torch.about['torch']})", lab.torch, "gloo"),
            Contender(lab.mpi.about["mpi"], lab.mpi, "mpi"),
        ]
        for num_bytes in benchmark.sizes:
            print(f"all_reduce {shape} {num_bytes} bytes", file=sys.stderr)
            effort = Effort(2, 2) if quick else Effort(4, 2) if num_bytes >= LARGE_BYTES else Effort(6, 3)
            series = alternate(
                contenders,
                "all_reduce",
                num_bytes,
                effort,
                seed=SEED + shape.num_ranks,
                read_sent_bytes=lab.sent_bytes,
            )
            yield from _lines(benchmark, num_bytes, series)


def _lines(benchmark: NetBenchmark, num_bytes: int, series: dict[str, Series]) -> Iterator[Line]:
    shape, ours = benchmark.shape, series[OURS]
    case = f"hosts={shape.num_hosts},ranks={shape.num_ranks},bytes={num_bytes},{shape.case}"
    peers = {name: result.median_s for name, result in series.items() if name != OURS}
    gloo_s = next(median for name, median in peers.items() if name.startswith("gloo"))
    problems = [problem for result in series.values() for problem in result.problems]
    for problem in problems[:5]:
        print(f"WRONG {case}: {problem}", file=sys.stderr)
    bound_s, bound_note = least_time(shape, num_bytes)
    goals, is_met = [], []
    if benchmark.times_gloo is not None and num_bytes >= benchmark.goal_from_bytes:
        goals.append(f">= {benchmark.times_gloo:g}x gloo")
        is_met.append(gloo_s / ours.median_s >= benchmark.times_gloo)
    if benchmark.wire_goal is not None and num_bytes >= benchmark.goal_from_bytes:
        goals.append(f">= {benchmark.wire_goal:g} of the wire")
        is_met.append(bound_s / ours.median_s >= benchmark.wire_goal)
    details = {
        "times_gloo": gloo_s / ours.median_s,
        "spread_of_peers": {name: result.spread for name, result in series.items() if name != OURS},
        "our_link": shape.our_link,
        "bound_without_headers_s": least_time(shape, num_bytes, payload_share=1.0)[0],
        "fast_s": {name: result.fast_s for name, result in series.items()},
        "problems": len(problems),
    }
    yield Line(
        case=case,
        metric="time_s",
        unit="s",
        better="lower",
        ours=ours.median_s,
        peers=peers,
        peer_note="gloo runs in our processes on our buffers, MPI through mpi4py in as many processes of its own",
        bound=bound_s,
        bound_note=bound_note,
        goal=" and ".join(goals),
        met=all(is_met) if goals else None,
        samples=len(ours.times_s),
        spread=ours.spread,
        verified=not problems,
        details=details,
    )
    if num_bytes < BYTES_FROM:
        return
    least_bytes = 2 * (shape.num_hosts - 1) / shape.num_hosts * num_bytes
    our_bytes = statistics.median(ours.link_bytes)
    yield Line(
        case=case,
        metric="link_bytes",
        unit="B",
        better="lower",
        ours=our_bytes,
        peers={name: statistics.median(result.link_bytes) for name, result in series.items() if name != OURS},
        bound=least_bytes,
        bound_note="2 (M-1)/M bytes for M hosts; measured by the interface of the host that sent most, with headers",
        goal=f"within {benchmark.bytes_goal:.0%} of the bound" if benchmark.bytes_goal else "",
        met=abs(our_bytes / least_bytes - 1) <= benchmark.bytes_goal if benchmark.bytes_goal else None,
        samples=len(ours.link_bytes),
        verified=not problems,
    )


def least_time(shape: LabShape, num_bytes: int, *, payload_share: float = PAYLOAD_SHARE) -> tuple[float, str]:
    """Return the shortest time that rate and delay allow, and how it comes about."""
    # The token bucket of a link without delay is full when a call begins; `clary_switch` has none.
    free = 0 if shape.delay_ms else burst_bytes(int(shape.rate_bytes_s))
    others = shape.num_hosts - 1

    def pass_s(sent_bytes: float) -> float:
        return max(0.0, sent_bytes / payload_share - free) / shape.rate_bytes_s

    at_once_s = shape.delay_ms / 1000 + pass_s(others * num_bytes)
    in_two_s = 2 * shape.delay_ms / 1000 + pass_s(2 * others / shape.num_hosts * num_bytes)
    return min(at_once_s, in_two_s), (
        "the lesser of delay + (M-1) bytes/rate (all to all at once) and 2 delay + 2 (M-1)/M bytes/rate (scattered, "
        f"then gathered), M hosts; {payload_share:.3f} of what passes is payload; the first {free} bytes that a host "
        "sends are free (burst)"
    )
