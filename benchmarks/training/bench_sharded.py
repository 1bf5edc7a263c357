"""Sharded data parallelism between hosts and in memory: bytes on links, speed-up of hybrid sharding, peak memory.

Hosts are network namespaces. M is the bytes of the parameters, H hosts of L ranks, W = H L. What a host must send a
step, by the algorithms that gloo and we use (rings for all-gathers and all-reduces, exchanges for our reductions):

    full, flat           2 (W-1)/W + L (W-L)/W   M    two gathers around a ring that leaves each host once; an exchange
    full, over hosts     3 (H-1)/H               M    each segment reaches each other host once; smddp does so by itself
    hybrid               2 (H-1)/H               M    a step, however many backward passes; sharded inside hosts
    replicated           2 (W-1)/W               M    our degree 1; smddp 2 (H-1)/H

DeepSpeed's ZeRO-3 is a peer of full sharding where `.venvs/deepspeed` is there. The ranks of one laboratory do all that
is measured there, one way after another; those of memory start anew for each.

The speed-up is predicted as compute and communication one after the other, as if nothing hid behind anything:
(compute + full) / (compute + hybrid). What can hide does, so it may be exceeded: with all hidden it is
max(compute, full) / max(compute, hybrid).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.collectives.bench_allreduce_net import PAYLOAD_SHARE
from benchmarks.lines import ROOT, Line
from benchmarks.service import TRAIN_PYTHON
from benchmarks.training.sharded_orders import Order
from clary.testing.lab_network import LabLink, LabNetwork

NUM_HOSTS, RANKS_A_HOST = 2, 2
SIZE = NUM_HOSTS * RANKS_A_HOST
FLOAT_BYTES = 4
GIGABIT_MBIT_S = 1000
BYTES_GOAL, SPEED_GOAL, MEMORY_GOAL = 0.03, 0.9, 1.05
DIGEST_TOLERANCE = 1e-5
START_LIMIT_S, ORDER_LIMIT_S = 60.0, 60.0
DEEPSPEED_PYTHON = ROOT / ".venvs/deepspeed/bin/python"
DEEPSPEED_MISSING = "DeepSpeed is missing (make .venvs/deepspeed.stamp)"
POLL_S = 0.05
STATES_PER_PARAMETER = 4  # AdamW in float32: parameter, gradient, two moments
COMMUNICATION_TO_COMPUTE = 2  # of full sharding
# Every allocation of a tensor is a mapping of its own, so that what is freed leaves the process.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True)
class Way:
    """One way to shard, and the part of M that a host is predicted to send in a backward pass, by backend."""

    name: str
    order: Order
    gloo_of_M: float
    smddp_of_M: float
    peer: Order


OVER_HOSTS = (NUM_HOSTS - 1) / NUM_HOSTS  # of M, for each gather or reduction in which segments reach hosts once
RING = (SIZE - 1) / SIZE
EXCHANGE = RANKS_A_HOST * (SIZE - RANKS_A_HOST) / SIZE
FLAT, FULL, HYBRID, REPLICATED = "full, flat", "full, over hosts", "hybrid", "replicated"
WAYS = {
    way.name: way
    for way in (
        Way(
            FLAT,
            Order("ours", SIZE, ranks_a_host=RANKS_A_HOST),
            2 * RING + EXCHANGE,
            3 * OVER_HOSTS,
            Order("fsdp2", SIZE, ranks_a_host=RANKS_A_HOST),
        ),
        Way(
            FULL,
            Order("ours", SIZE, is_hierarchical=True, ranks_a_host=RANKS_A_HOST),
            3 * OVER_HOSTS,
            3 * OVER_HOSTS,
            Order("fsdp2", SIZE, ranks_a_host=RANKS_A_HOST),
        ),
        Way(
            HYBRID,
            Order("ours", RANKS_A_HOST, ranks_a_host=RANKS_A_HOST),
            2 * OVER_HOSTS,
            2 * OVER_HOSTS,
            Order("fsdp2", RANKS_A_HOST, ranks_a_host=RANKS_A_HOST),
        ),
        Way(
            REPLICATED,
            Order("ours", 1, ranks_a_host=RANKS_A_HOST),
            2 * RING,
            2 * OVER_HOSTS,
            Order("ddp", 1, ranks_a_host=RANKS_A_HOST),
        ),
    )
}


@dataclass(frozen=True)
class Links:
    """One laboratory: links, model, backend, and the ways that are measured there."""

    rate_mbit_s: int
    backend: str
    ways: tuple[str, ...]
    num_layers: int
    width: int
    passes: int = 1
    has_speed: bool = True
    has_deepspeed: bool = False

    @property
    def model_bytes(self) -> int:
        return self.num_layers * self.width**2 * FLOAT_BYTES

    @property
    def rate_bytes_s(self) -> int:
        return self.rate_mbit_s * 125_000

    @property
    def compute_s(self) -> float:
        """Seconds of compute in a step: for each backward pass, half of the link time of flat full sharding."""
        return WAYS[FLAT].gloo_of_M * self.model_bytes / self.rate_bytes_s / COMMUNICATION_TO_COMPUTE * self.passes

    @property
    def case(self) -> str:
        return (
            f"hosts={NUM_HOSTS},ranks={SIZE},link={self.rate_mbit_s}mbit,backend={self.backend},M={self.model_bytes},"
            f"passes={self.passes}"
        )

    def sent_bytes(self, way: Way) -> float:
        """Return the predicted bytes that a host sends in a step: only full sharding sends for every backward pass."""
        of_M = way.gloo_of_M if self.backend == "gloo" else way.smddp_of_M
        # Token buckets below 1 Gbit/s are too small for what the kernel would hand over in one piece: every frame has
        # headers there, and the interface counts them.
        share = PAYLOAD_SHARE if self.rate_mbit_s < GIGABIT_MBIT_S else 1.0
        return of_M * self.model_bytes * (self.passes if way.order.degree == SIZE else 1) / share

    def whole(self, order: Order) -> Order:
        """Say the rest of an order."""
        return replace(
            order,
            compute_s=self.compute_s,
            passes=self.passes,
            num_layers=self.num_layers,
            width=self.width,
            backend=self.backend,
        )

    def link_s(self, way: Way) -> float:
        return self.sent_bytes(way) / self.rate_bytes_s


ALL = (FLAT, FULL, HYBRID, REPLICATED)
LINKS = (
    Links(250, "gloo", ALL, 8, 768),
    Links(250, "smddp", (FULL, HYBRID), 8, 768),
    Links(1000, "gloo", (FLAT, FULL, HYBRID), 8, 1536, has_deepspeed=True),
    Links(1000, "smddp", (FULL, HYBRID), 8, 1536),
    Links(250, "gloo", (FULL, HYBRID), 8, 512, passes=2),
)
QUICK = (Links(1000, "gloo", (FULL, HYBRID), 4, 512, passes=2, has_speed=False),)


def run(quick: bool) -> Iterator[Line]:
    """Measure links, then memory."""
    if not DEEPSPEED_PYTHON.exists():
        print(f"{DEEPSPEED_MISSING}: ZeRO-3 is left out", file=sys.stderr)
    for links in QUICK if quick else LINKS:
        yield from _links(links)
    yield from _memories(quick)


def _links(links: Links) -> Iterator[Line]:
    ways = [WAYS[name] for name in links.ways]
    deepspeed = Order("deepspeed", SIZE, ranks_a_host=RANKS_A_HOST)
    wanted = list(dict.fromkeys(order for way in ways for order in (way.order, way.peer)))
    if links.has_deepspeed and DEEPSPEED_PYTHON.exists():
        wanted.append(deepspeed)
    with LabNetwork(NUM_HOSTS, LabLink(rate_mbit_s=links.rate_mbit_s)) as network:
        entries = [network.entry(host) for host in network.hosts for _ in range(RANKS_A_HOST)]
        done: dict[Order, _Ran] = {}
        for python in (TRAIN_PYTHON, DEEPSPEED_PYTHON):
            orders = [order for order in wanted if _python_of(order) == python]
            if orders:
                done |= zip(orders, _run([links.whole(order) for order in orders], SIZE, entries), strict=True)
    for way in ways:
        peers = [way.peer, *([deepspeed] if way.order.degree == SIZE and deepspeed in done else [])]
        yield _bytes_line(links, way, done, peers)
        if links.has_speed:
            yield _time_line(links, way, done, peers)
    if links.has_speed:
        for name in (FLAT, FULL):
            if name in links.ways:
                yield _speed_line(links, name, done)


def _bytes_line(links: Links, way: Way, done: Mapping[Order, _Ran], peers: Sequence[Order]) -> Line:
    ours, bound = done[way.order], links.sent_bytes(way)
    return Line(
        case=f"way={way.name},{links.case}",
        metric="link_bytes",
        unit="B",
        better="lower",
        ours=ours.sent_bytes,
        peers={_words(peer, links.backend, done[peer]): done[peer].sent_bytes for peer in peers},
        peer_note=_peer_note(links),
        bound=bound,
        bound_note="the module's formula; measured by the interface of the host that sent most, with headers, a step",
        goal=f"within {BYTES_GOAL:.0%} of the formula",
        met=abs(ours.sent_bytes / bound - 1) <= BYTES_GOAL,
        samples=ours.num_steps,
        verified=_agree([ours.digest, *(done[peer].digest for peer in peers)]),
        details={
            "of_M": ours.sent_bytes / links.model_bytes,
            "peers_of_M": {peer.way: done[peer].sent_bytes / links.model_bytes for peer in peers},
        },
    )


def _time_line(links: Links, way: Way, done: Mapping[Order, _Ran], peers: Sequence[Order]) -> Line:
    ours = done[way.order]
    return Line(
        case=f"way={way.name},{links.case}",
        metric="step_s",
        unit="s",
        better="lower",
        ours=ours.step_s,
        peers={_words(peer, links.backend, done[peer]): done[peer].step_s for peer in peers},
        peer_note=_peer_note(links),
        bound=max(links.compute_s, links.link_s(way)),
        bound_note="compute, which sleeps, or the bytes of the formula on the link, if they take longer",
        samples=ours.num_steps,
        verified=_agree([ours.digest, *(done[peer].digest for peer in peers)]),
        details={"compute_s": links.compute_s, "link_s": links.link_s(way), "load": os.getloadavg()[0]},
    )


def _words(peer: Order, backend: str, ran: _Ran) -> str:
    return f"{peer.way} over {backend} (torch {ran.torch})"


def _peer_note(links: Links) -> str:
    if links.has_deepspeed and not DEEPSPEED_PYTHON.exists():
        return DEEPSPEED_MISSING
    about = (
        "deepspeed is ZeRO-3, one layer gathered ahead; what it keeps whole until its next use is not gathered again"
    )
    return about if links.has_deepspeed else ""


def _speed_line(links: Links, against: str, done: Mapping[Order, _Ran]) -> Line:
    full, hybrid = done[WAYS[against].order], done[WAYS[HYBRID].order]
    full_peer, hybrid_peer = done[WAYS[against].peer], done[WAYS[HYBRID].peer]
    full_s, hybrid_s = links.link_s(WAYS[against]), links.link_s(WAYS[HYBRID])
    predicted = (links.compute_s + full_s) / (links.compute_s + hybrid_s)
    return Line(
        case=f"hybrid against {against},{links.case}",
        metric="speedup",
        unit="times",
        better="higher",
        ours=full.step_s / hybrid.step_s,
        peers={f"fsdp2 over {links.backend} (torch {full.torch})": full_peer.step_s / hybrid_peer.step_s},
        bound=max(links.compute_s, full_s) / max(links.compute_s, hybrid_s),
        bound_note="if all hides that can; the prediction of the goal has nothing hidden",
        goal=f">= {SPEED_GOAL:g} of the predicted {predicted:.3f}",
        met=full.step_s / hybrid.step_s >= SPEED_GOAL * predicted,
        samples=hybrid.num_steps,
        verified=_agree([full.digest, hybrid.digest]),
        details={
            "predicted": predicted,
            "compute_s": links.compute_s,
            "link_s": {name: links.link_s(WAYS[name]) for name in links.ways},
            "step_s": {name: done[WAYS[name].order].step_s for name in links.ways},
            "peer_step_s": {name: done[WAYS[name].peer].step_s for name in links.ways},
            "load": os.getloadavg()[0],
        },
    )


def _memories(quick: bool) -> Iterator[Line]:
    shape: dict[str, Any] = {"num_layers": 24, "width": 256} if quick else {"num_layers": 96, "width": 512}
    unit_bytes = shape["width"] ** 2 * FLOAT_BYTES
    states_bytes = shape["num_layers"] * unit_bytes * STATES_PER_PARAMETER
    for degree in (2,) if quick else (2, 4):
        order = Order("ours", degree, optimizer="AdamW", num_warm=2, **shape)
        ours, peer = (_run([replace(order, way=way)], degree, [()] * degree, ALLOCATOR)[0] for way in ("ours", "fsdp2"))
        bound = states_bytes / degree + 2 * unit_bytes
        yield Line(
            case=f"degree={degree},ranks={degree},layers={shape['num_layers']},width={shape['width']}",
            metric="peak_bytes",
            unit="B",
            better="lower",
            ours=ours.peak_bytes,
            peers={f"fsdp2 over gloo (torch {peer.torch})": peer.peak_bytes},
            bound=bound,
            bound_note="states of AdamW / degree, and one layer's parameters and gradients whole; measured as the "
            "growth "
            "of the process's resident memory, so with buffers of gloo and activations",
            goal=f"<= {MEMORY_GOAL:g} of the bound",
            met=ours.peak_bytes <= MEMORY_GOAL * bound,
            samples=ours.num_steps,
            verified=_agree([ours.digest, peer.digest]),
            details={
                "unit_bytes": unit_bytes,
                "units_over_states": (ours.peak_bytes - states_bytes / degree) / unit_bytes,
            },
        )


@dataclass(frozen=True)
class _Ran:
    """Measurements of one run, the worst of its ranks."""

    step_s: float
    sent_bytes: float  # a step, by the host that sent most
    peak_bytes: int
    digest: float
    num_steps: int
    torch: str


def _python_of(order: Order) -> Path:
    return DEEPSPEED_PYTHON if order.way == "deepspeed" else TRAIN_PYTHON


def _run(
    orders: Sequence[Order], size: int, entries: Sequence[Sequence[str]], variables: Mapping[str, str] | None = None
) -> list[_Ran]:
    """Have ranks do one order after another; all are of one interpreter."""
    for order in orders:
        print(f"{order}", file=sys.stderr)
    environment = {
        **os.environ,
        **(variables or {}),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0" if entries[0] else "lo",
    }
    with tempfile.TemporaryDirectory(prefix="clary-sharded-") as folder:
        program = [str(_python_of(orders[0])), "-m", "benchmarks.training.sharded_rank", folder]
        words = json.dumps([asdict(order) for order in orders])
        processes: list[subprocess.Popen[bytes]] = []
        try:
            with (Path(folder) / "output").open("wb") as output:
                for rank in range(size):
                    a_host = orders[0].ranks_a_host
                    host = f"host-{rank // a_host}" if a_host else "host"  # smddp's word for it
                    processes.append(
                        subprocess.Popen(
                            [*entries[rank], *program, str(rank), str(size), words],
                            env=environment | {"CLARY_COLLECTIVE_HOST": host},
                            cwd=ROOT,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                        )
                    )
            _wait(processes, START_LIMIT_S + ORDER_LIMIT_S * len(orders))
        finally:
            for process in processes:
                process.kill()
                process.wait()
        answers = [[Path(folder) / f"answer-{place}-{rank}" for rank in range(size)] for place in range(len(orders))]
        missing = [
            order for order, of_order in zip(orders, answers, strict=True) if not all(map(Path.exists, of_order))
        ]
        if missing:
            said = (Path(folder) / "output").read_text(encoding="utf-8", errors="replace")[-3000:]
            raise RuntimeError(f"{missing[0]}: ranks ended with {[one.returncode for one in processes]}: {said}")
        return [_read([json.loads(one.read_text(encoding="ascii")) for one in of_order]) for of_order in answers]


def _wait(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Wait until all have ended, one has failed (others would wait for it), or time is over."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        codes = [process.poll() for process in processes]
        if any(codes) or None not in codes:
            return
        time.sleep(POLL_S)


def _read(told: Sequence[Mapping[str, Any]]) -> _Ran:
    steps_s = [max(times) for times in zip(*(one["seconds"] for one in told), strict=True)]
    sent = max(one["sent_bytes"] for one in told) / len(steps_s)
    peak = max(one["peak_bytes"] for one in told)
    return _Ran(statistics.median(steps_s), sent, peak, told[0]["digest"], len(steps_s), told[0]["torch"])


def _agree(digests: Sequence[float]) -> bool:
    return max(digests) - min(digests) <= DIGEST_TOLERANCE * abs(max(digests))
