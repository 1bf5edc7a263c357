"""Effect of compressing gradients at 100 Mbit/s, on 4 hosts: tokens a second, bytes on the link, and loss.

The compressions are those of `adapters.torch.compression` and, as `local`, `LocalUpdates`, over smddp and over gloo, on
a small transformer that predicts bytes of real text. All runs live in the same processes and are stepped in turns. A
speed counts only beside the loss after the same number of steps.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator

from benchmarks.collectives.collective_lab import LabShape, running_lab
from benchmarks.collectives.collective_runs import RunSpec, Trained, train_in_turns
from benchmarks.lines import Line, median_and_spread

OURS, PEER = "smddp", "gloo"
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd", "local")
ALONE = "alone"  # ranks that never communicate
LOSS_GOAL = 0.01  # part by which the loss may be above that without compression
SHAPE = LabShape(num_hosts=4, num_ranks=4, rate_mbit_s=100)
QUICK_SHAPE = LabShape(num_hosts=2, num_ranks=2, rate_mbit_s=100)
MODEL, CONTEXT = "small-transformer", 64
NUM_TURNS, STEPS_A_TURN = 8, 10
WARM_UP_STEPS = 20  # PowerSGD begins after the second; with all others a whole number of LocalUpdates' periods
SEED = 70_000


def run(quick: bool) -> Iterator[Line]:
    """Train."""
    shape = QUICK_SHAPE if quick else SHAPE
    compressions = ("none", "bf16") if quick else COMPRESSIONS
    with running_lab(shape, with_mpi=False) as lab:
        lab.torch.ask({"do": "open", "door": OURS, "backend": OURS, "environment": {}})
        runs = [RunSpec(ALONE, OURS, ALONE)]
        runs += [RunSpec(_name(door, how), door, how) for how in compressions for door in (OURS, PEER)]
        trained = train_in_turns(
            lab.torch,
            runs,
            model=MODEL,
            seed=SEED,
            num_turns=1 if quick else NUM_TURNS,
            steps_a_turn=1 if quick else STEPS_A_TURN,
            warm_up_steps=3 if quick else WARM_UP_STEPS,
            read_sent_bytes=lab.sent_bytes,
        )
        for how in compressions:
            yield from _lines(shape, how, f"gloo (torch {lab.torch.about['torch']})", trained)


def _name(door: str, compression: str) -> str:
    return f"{door},{compression}"


def _lines(shape: LabShape, compression: str, peer_name: str, trained: Trained) -> Iterator[Line]:
    case = f"compression={compression},hosts={shape.num_hosts},ranks={shape.num_ranks},{shape.case}"
    our_name, peer_run = _name(OURS, compression), _name(PEER, compression)
    ours, peer = trained.outcomes[our_name], trained.outcomes[peer_run]
    plain = trained.outcomes[_name(OURS, "none")]
    for name, outcome in (("ours", ours), ("peer", peer)):
        print(f"{case} {name}: {outcome.curve()}", file=sys.stderr)
    is_right = trained.ranks_agree(our_name, peer_run)
    # Means, not medians: local updates communicate in few turns.
    speed, spread = statistics.harmonic_mean(ours.samples_per_s), median_and_spread(ours.samples_per_s)[1]
    times_plain = speed / statistics.harmonic_mean(plain.samples_per_s)
    yield Line(
        case=case,
        metric="samples_per_s",
        unit="1/s",
        better="higher",
        ours=speed,
        peers={peer_name: statistics.harmonic_mean(peer.samples_per_s)},
        bound=statistics.harmonic_mean(trained.outcomes[ALONE].samples_per_s),
        bound_note="ranks that never communicate, in the same turns",
        samples=len(ours.samples_per_s),
        spread=spread,
        verified=is_right,
        details={"tokens_per_s": speed * CONTEXT, "times_plain": times_plain, "parameters": trained.parameters},
    )
    yield Line(
        case=case,
        metric="link_bytes",
        unit="B",
        better="lower",
        ours=statistics.mean(ours.link_bytes),
        peers={peer_name: statistics.mean(peer.link_bytes)},
        samples=len(ours.link_bytes),
        verified=is_right,
        details={"times_plain": statistics.mean(ours.link_bytes) / statistics.mean(plain.link_bytes)},
    )
    gap = ours.final_loss() / plain.final_loss() - 1
    yield Line(
        case=case,
        metric="loss",
        unit="nats",
        better="lower",
        ours=ours.final_loss(),
        peers={peer_name: peer.final_loss()},
        goal="" if compression == "none" else f"<= {LOSS_GOAL:.0%} above that without compression",
        met=None if compression == "none" else gap <= LOSS_GOAL,
        samples=len(ours.losses),
        verified=is_right,
        details={"curve": ours.curve(), "above_plain": gap},
    )
