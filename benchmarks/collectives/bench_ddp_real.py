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
from dataclasses import dataclass

from benchmarks.collectives.collective_gang import Gang
from benchmarks.collectives.collective_lab import LabShape, running_lab
from benchmarks.collectives.collective_runs import RunSpec, Trained, train_in_turns
from benchmarks.lines import Line, median_and_spread

OURS, PEER = "smddp", "gloo"
SEED = 50_000
LOSS_TOLERANCE = 0.02


@dataclass(frozen=True)
class RealCase:
    """A model, and the ranks and network that train it; `shape` None is one host."""

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
    RealCase("many-layers", 2, None, num_turns=12, steps_a_turn=100),
    RealCase("transformer", 4, LabShape(num_hosts=2, num_ranks=4, rate_mbit_s=1000), num_turns=8, steps_a_turn=4),
)
QUICK = (
    RealCase("convnet", 2, None, num_turns=2, steps_a_turn=5),
    RealCase("many-layers", 2, None, num_turns=2, steps_a_turn=5),
    RealCase("transformer", 2, None, num_turns=1, steps_a_turn=1),
)


def run(quick: bool) -> Iterator[Line]:
    """Train."""
    for case in QUICK if quick else CASES:
        with _gang(case) as gang:
            gang.ask({"do": "open", "door": OURS, "backend": OURS, "environment": {}})
            trained = train_in_turns(
                gang,
                [RunSpec(OURS, OURS), RunSpec(PEER, PEER)],
                model=case.model,
                seed=SEED,
                num_turns=case.num_turns,
                steps_a_turn=case.steps_a_turn,
            )
            yield from _lines(case, f"gloo (torch {gang.about['torch']})", trained)


def _lines(case: RealCase, peer_name: str, trained: Trained) -> Iterator[Line]:
    ours, peer = trained.outcomes[OURS], trained.outcomes[PEER]
    for name, outcome in trained.outcomes.items():
        print(f"{case.case} {name}: {outcome.curve()}", file=sys.stderr)
    same_bits = ours.losses == peer.losses and trained.digests[0][OURS] == trained.digests[0][PEER]
    is_close = abs(ours.final_loss() / peer.final_loss() - 1) <= LOSS_TOLERANCE
    must_be_same = case.num_ranks == 2
    is_right = trained.ranks_agree(OURS, PEER) and (same_bits if must_be_same else is_close)
    likeness = "losses and weights have gloo's bits" if must_be_same else f"within {LOSS_TOLERANCE:.0%} of gloo's"
    has_learnt = statistics.mean(ours.losses[-1]) < statistics.mean(ours.losses[0])
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
            "parameters": trained.parameters,
            "batch_size": trained.batch_size,
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
        goal=f"{likeness}, and lower than at first",
        met=is_right and has_learnt,
        samples=len(ours.losses),
        verified=is_right,
        details={"curve": ours.curve(), "peer_curve": peer.curve(), "same_bits": same_bits},
    )


@contextlib.contextmanager
def _gang(case: RealCase) -> Iterator[Gang]:
    if case.shape is None:
        with Gang("torch", case.num_ranks, environment={"GLOO_SOCKET_IFNAME": "lo"}) as gang:
            yield gang
    else:
        with running_lab(case.shape, with_mpi=False) as lab:
            yield lab.torch
