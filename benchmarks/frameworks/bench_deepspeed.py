"""DeepSpeed's ZeRO over our backend `smddp` beside the same over gloo: a step, losses, and memory at its peak.

Two gangs of two ranks train one GPT with the same DeepSpeed; `dist_backend` is all that they differ by. Both are there
at once and take turns, block by block, so that what else the machine does hits both. ZeRO-1, 2 and 3 come with the
optimizer where it is and offloaded to the CPU, which on a host without a GPU moves it from memory to memory.

Losses must be those of the other gang within SAME, and those of torch's DistributedDataParallel within AS_DDP.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.collectives.collective_gang import Gang
from benchmarks.lines import ROOT, Line, median_and_spread

OURS, PEER = "smddp", "gloo"
NUM_RANKS = 2
SIZES = {
    "num_layers": 6,
    "width": 384,
    "num_heads": 6,
    "length": 64,
    "vocabulary": 256,
    "batch": 4,
}  # 10.9 M parameters
NUM_WARM, BLOCK_STEPS, NUM_BLOCKS = 3, 5, 8
QUICK_WARM, QUICK_BLOCK_STEPS, QUICK_BLOCKS = 1, 3, 2
SAME = 1e-5  # of losses, relative, step by step
AS_DDP = 1e-4  # the same: sums and updates are in other orders, and steps go on from them
MEMORY_GOAL = 1.05
PYTHON = ROOT / ".venvs/deepspeed/bin/python"


@dataclass(frozen=True)
class Case:
    """A way to train: a stage of ZeRO, or torch's DistributedDataParallel where it is 0."""

    stage: int
    is_offloaded: bool = False

    @property
    def words(self) -> str:
        """Return the case as lines name it."""
        way = f"zero={self.stage},offload={'cpu' if self.is_offloaded else 'none'}" if self.stage else "ddp"
        return f"{way},ranks={NUM_RANKS}"


DDP = Case(0)
CASES = (DDP, *(Case(stage, is_offloaded) for stage in (1, 2, 3) for is_offloaded in (False, True)))


@dataclass
class Taken:
    """Measurements of one gang in a case, over its ranks.

    Args:
        blocks_s: seconds of the steps of each block, each of the rank that took longest.
        losses: the mean over ranks, from the first step on.
        peak_bytes: of the rank that had most.
        left_bytes: of the rank that held most after it has dropped the model.
        num_parameters: of the model.
    """

    blocks_s: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    left_bytes: int = 0
    num_parameters: int = 0

    @property
    def steps_s(self) -> list[float]:
        """Return the seconds of all steps that count."""
        return [second for block in self.blocks_s for second in block]

    def add(self, answers: Sequence[dict[str, Any]], *, counts: bool) -> None:
        """Add a block as the ranks report it; one that does not count has its losses added alone."""
        if counts:
            self.blocks_s.append([max(times) for times in zip(*(one["seconds"] for one in answers), strict=True)])
        self.losses += [statistics.mean(losses) for losses in zip(*(one["losses"] for one in answers), strict=True)]

    def furthest_from(self, other: Taken) -> float:
        """Return the greatest difference of two losses of one step, relative."""
        return max(abs(a / b - 1) for a, b in zip(self.losses, other.losses, strict=True))


def run(quick: bool) -> Iterator[Line]:
    """Measure all cases; with `quick` in few steps.

    Raises: GangError if a rank fails; FileNotFoundError without DeepSpeed's environment.
    """
    if not PYTHON.exists():
        raise FileNotFoundError(f"deepspeed: {PYTHON} is missing: `make .venvs/deepspeed.stamp` brings it")
    plain: dict[str, Taken] = {}
    with contextlib.ExitStack() as stack:
        for case in CASES:
            print(case.words, file=sys.stderr)
            if not (quick and plain):  # memory that a case leaves behind belongs to no other: ranks start anew
                stack.close()
                gangs = stack.enter_context(_gangs())
            taken = measure(gangs, case, quick=quick)
            plain = plain or taken  # DDP is the first
            yield from lines(case, taken, plain[PEER], gangs[OURS].about)


def measure(gangs: dict[str, Gang], case: Case, *, quick: bool) -> dict[str, Taken]:
    """Train one case in all gangs, in turns of one block each."""
    num_warm, num_steps, num_blocks = (
        (QUICK_WARM, QUICK_BLOCK_STEPS, QUICK_BLOCKS) if quick else (NUM_WARM, BLOCK_STEPS, NUM_BLOCKS)
    )
    taken = {name: Taken() for name in gangs}
    for name, gang in gangs.items():
        made = gang.ask({"do": "make", "stage": case.stage, "is_offloaded": case.is_offloaded, "sizes": SIZES})
        taken[name].num_parameters = made[0]["num_parameters"]
    for block in range(num_blocks + 1):
        for name in gangs if block % 2 else reversed(gangs):
            answers = gangs[name].ask({"do": "train", "num_steps": num_steps if block else num_warm})
            taken[name].add(answers, counts=block > 0)
    for name, gang in gangs.items():
        dropped = gang.ask({"do": "drop"})
        taken[name].peak_bytes = max(answer["peak_bytes"] for answer in dropped)
        taken[name].left_bytes = max(answer["left_bytes"] for answer in dropped)
    return taken


def lines(case: Case, taken: dict[str, Taken], plain: Taken, about: dict[str, str]) -> Iterator[Line]:
    """Return the lines of a case: seconds of a step, and memory.

    Args:
        plain: what DistributedDataParallel has trained, over the peer.
        about: versions.
    """
    ours, peer = taken[OURS], taken[PEER]
    apart, from_ddp = ours.furthest_from(peer), ours.furthest_from(plain)
    step_s, spread = median_and_spread(ours.steps_s)
    peer_s = statistics.median(peer.steps_s)
    trainer = f"DeepSpeed {about['deepspeed']}" if case.stage else "DDP"
    software = f"{trainer} over {PEER} (torch {about['torch']})"
    common: dict[str, Any] = {
        "case": case.words,
        "better": "lower",
        "peer_note": "both gangs are there at once and take turns, block by block",
        "verified": apart <= SAME and from_ddp <= AS_DDP,
    }
    yield Line(
        **common,
        metric="step_s",
        unit="s",
        ours=step_s,
        spread=spread,
        peers={software: peer_s},
        goal=f">= 1x {PEER}, losses within {SAME:g} of it and {AS_DDP:g} of DDP",
        met=step_s <= peer_s,
        samples=len(ours.steps_s),
        details={
            "ratio_of_turns": paired_ratio(ours, peer),
            "loss": {OURS: ours.losses[-1], PEER: peer.losses[-1], "ddp": plain.losses[-1]},
            "losses_differ_by": {PEER: apart, "ddp": from_ddp},
            "num_steps": len(ours.losses),
            "parameters": ours.num_parameters,
            "load": os.getloadavg()[0],
        },
    )
    yield Line(
        **common,
        metric="peak_bytes",
        unit="B",
        ours=ours.peak_bytes,
        peers={software: peer.peak_bytes},
        goal=f"<= {MEMORY_GOAL:g} of {PEER}",
        met=ours.peak_bytes <= MEMORY_GOAL * peer.peak_bytes,
        samples=NUM_RANKS,
        details={
            "is": "growth of a rank's resident memory since before it made the model, and all of its shared memory",
            "left_bytes": {OURS: ours.left_bytes, PEER: peer.left_bytes},  # of that, without the model
        },
    )


def paired_ratio(ours: Taken, peer: Taken) -> float:
    """Return the median over turns of the peer's time over ours: above 1 is better."""
    pairs = zip(ours.blocks_s, peer.blocks_s, strict=True)
    return statistics.median(statistics.median(theirs) / statistics.median(own) for own, theirs in pairs)


class _DeepSpeedGang(Gang):
    """Ranks of `deepspeed_rank`."""

    def _commands(self, folder: Path) -> list[list[str]]:
        program = [str(PYTHON), "-m", "benchmarks.frameworks.deepspeed_rank", self.kind, str(folder)]
        return [[*program, str(rank), str(self.num_ranks)] for rank in range(self.num_ranks)]


@contextlib.contextmanager
def _gangs() -> Iterator[dict[str, Gang]]:
    """Start both gangs, and end them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clary-deepspeed-")))
        yield {name: stack.enter_context(_gang(name, folder / name)) for name in (OURS, PEER)}


def _gang(backend: str, extensions: Path) -> Gang:
    # DeepSpeed locks the folder that it loads its extension from: a copy, which nobody else may have left locked.
    shutil.copytree(PYTHON.parents[1] / "extensions", extensions, ignore=shutil.ignore_patterns("lock"))
    environment = {
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(extensions),
        "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",  # ninja
        "GLOO_SOCKET_IFNAME": "lo",
        "CLARY_COLLECTIVE_HOST": "host",
    }
    return _DeepSpeedGang(backend, NUM_RANKS, environment=environment)
