"""A training step of smp beside the same step written by hand: pipeline, tensor group, shards, on two ranks each.

One GPT, the same weights and batches for all contenders, who live in the same processes and take turns; AdamW is part
of the step. What is compared is the median over turns of our time over a peer's in the same turn: what else the machine
does hits both. Each peer's losses must be ours, step by step. Communication of ours and of peers goes over one backend
(smddp, or gloo with CLARY_BENCH_BACKEND=gloo), but for our pipeline, which has streams of its own.

    bound = the same passes of one rank, one after another, with nothing sent or gathered, in the same turns
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lines import ROOT, Line, median_and_spread
from benchmarks.service import TRAIN_PYTHON

BACKEND_VARIABLE = "CLARY_BENCH_BACKEND"
NUM_RANKS = 2
NUM_STEPS = 20
NUM_MICROBATCHES = 4
GOAL = 1.05  # of the time of the step that is written by hand
TOLERANCE = 1e-3  # of losses, relative: sums are in other orders, and steps go on from them
LIMIT_S = 150.0
SIZES = {"num_layers": 8, "width": 256, "num_heads": 4, "length": 128, "vocabulary": 256, "batch": 8}
QUICK_SIZES = {**SIZES, "num_layers": 2, "width": 64, "length": 32}
BOUND = "bound"


@dataclass(frozen=True)
class Layout:
    """A layout to measure, and the contenders in it.

    Args:
        peers: names of contenders, and what they are.
    """

    name: str
    about: str
    peers: dict[str, str]


LAYOUTS = (
    Layout("pp", f"pp=2,microbatches={NUM_MICROBATCHES}", {"hand": "1F1B by hand", "torch": "torch Schedule1F1B"}),
    Layout("tp", "tp=2,optimize=speed", {"hand": "layers cut by hand"}),
    Layout("sdp", "sdp=2", {"hand": "gathers and reductions by hand", "fsdp2": "torch FSDP2"}),
)


def run(quick: bool) -> Iterator[Line]:
    """Measure all layouts."""
    backend = os.environ.get(BACKEND_VARIABLE, "smddp")
    for layout in LAYOUTS:
        plan = {
            "layout": layout.name,
            "backend": backend,
            "microbatches": NUM_MICROBATCHES,
            "steps": 2 if quick else NUM_STEPS,
            "sizes": QUICK_SIZES if quick else SIZES,
        }
        print(f"{layout.about} over {backend}", file=sys.stderr)
        found = run_ranks("benchmarks.training.step_rank", plan, limit_s=LIMIT_S)
        yield _line(layout, backend, found)


def run_ranks(module: str, plan: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
    """Run a program of ranks; return the last output of rank 0, parsed as JSON.

    Raises: RuntimeError with their last words if a rank fails, or takes longer than `limit_s`.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore::FutureWarning"}
    with tempfile.TemporaryDirectory(prefix="clary-step-") as folder:
        ranks = []
        for rank in range(NUM_RANKS):
            command = [str(TRAIN_PYTHON), "-m", module, str(rank), str(NUM_RANKS), folder, json.dumps(plan)]
            with (Path(folder) / f"words-{rank}").open("wb") as words, (Path(folder) / f"out-{rank}").open("wb") as out:
                ranks.append(subprocess.Popen(command, stdout=out, stderr=words, env=environment, cwd=ROOT))
        deadline_s = time.monotonic() + limit_s
        try:
            while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline_s:
                if any(rank.poll() for rank in ranks):  # the other would wait for it
                    break
                time.sleep(0.05)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        codes = [rank.returncode for rank in ranks]
        if any(codes):
            said = "\n".join(
                f"rank {rank}: {(Path(folder) / f'words-{rank}').read_text(errors='replace')[-2000:]}"
                for rank in range(NUM_RANKS)
            )
            raise RuntimeError(f"{module} ended with {codes} within {limit_s:g} s; plan {plan}\n{said}")
        found: dict[str, Any] = json.loads((Path(folder) / "out-0").read_text().splitlines()[-1])
        return found


def _line(layout: Layout, backend: str, found: dict[str, Any]) -> Line:
    seconds, losses = found["seconds"], found["losses"]
    ours, spread = median_and_spread(seconds["ours"])
    paired = {who: _paired(seconds["ours"], seconds[who]) for who in [*layout.peers, BOUND]}
    by_hand = statistics.median(paired["hand"])
    bound = statistics.median(seconds[BOUND])
    return Line(
        case=f"{layout.about},ranks={NUM_RANKS},backend={backend}",
        metric="step_s",
        unit="s",
        better="lower",
        ours=ours,
        peers={f"{about} (torch {found['torch']})": _median(seconds[who]) for who, about in layout.peers.items()},
        peer_note="same processes, same turns; paired ratios, ours over theirs, are in details",
        bound=bound,
        bound_note="the same passes of one rank with nothing sent",
        goal=f"<= {GOAL:g} of the step written by hand, median of pairs",
        met=by_hand <= GOAL,
        samples=len(seconds["ours"]),
        spread=spread,
        verified=all(_agree(losses["ours"], losses[who]) for who in layout.peers),
        details={
            "ours_over": {who: statistics.median(ratios) for who, ratios in paired.items()},
            "spread_of_ours_over": {who: median_and_spread(ratios)[1] for who, ratios in paired.items()},
            "least_s": {who: min(values) for who, values in seconds.items()},
            "cpu_s": {who: _median(values) for who, values in found["cpu_s"].items()},
            "cpu_of_ours_over": {who: _median(_paired(found["cpu_s"]["ours"], found["cpu_s"][who])) for who in paired},
            "losses": {who: [values[0], values[-1]] for who, values in losses.items()},
            "load": os.getloadavg()[0],
        },
    )


def _paired(ours: list[float], theirs: list[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _agree(ours: list[float], theirs: list[float]) -> bool:
    return len(ours) == len(theirs) and all(
        abs(one - other) <= TOLERANCE * abs(other) for one, other in zip(ours, theirs, strict=True)
    )
