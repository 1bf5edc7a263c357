"""SageMaker's libraries for TensorFlow over our collectives, beside TensorFlow's own ways and one process.

All-reduces by size, eager and inside of tf.function: SMDDP and our `horovod.tensorflow` beside CollectiveReduceV2 over
the gRPC servers of MultiWorkerMirroredStrategy. A training of MNIST's model by SMDDP, by Horovod and by that strategy,
beside one process with the whole batch. The same by SMP in a pipeline of two partitions, beside one process.

Each way has processes of its own, two ranks on this host; all wait while one has its turn. The bound of a pipeline of p
partitions with m microbatches is the step of one process on one core times (m + p - 1) / (p * m): partitions are
equally dear there, and messages and small pieces cost nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.collectives.collective_compare import Contender, Effort, Series, alternate
from benchmarks.frameworks.tensorflow_gang import MICROBATCHES, PARTITIONS, TensorFlowGang, Trained, train_in_turns
from benchmarks.lines import Line, median_and_spread

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4, 4 * KIB, 256 * KIB, 4 * MIB, 64 * MIB)
MODES = {"eager": "eager", "function": "in tf.function"}
OURS = ("smddp", "horovod")
PEER = "tensorflow"
ALONE, ONE_CORE, PIPELINE = "alone", "alone on one core", "smp"
RANKS = 2
BATCH = 128  # of the Keras example
LOSS_TOLERANCE = 1e-4
SEED = 70_000


@dataclass(frozen=True)
class Amount:
    """How much is measured."""

    effort: Effort
    num_warm_up: int
    num_steps: int
    num_turns: int


QUICK = Amount(Effort(rounds=2, samples=3), num_warm_up=3, num_steps=4, num_turns=2)
FULL = Amount(Effort(rounds=8, samples=10), num_warm_up=5, num_steps=10, num_turns=6)


def run(quick: bool) -> Iterator[Line]:
    """Measure. Raises: GangError if ranks fail, with their words."""
    amount = QUICK if quick else FULL
    with ExitStack() as running:
        alone = _start(running, ALONE)
        with ExitStack() as sharing:
            gangs = {way: _start(sharing, way) for way in (*OURS, PEER)}
            yield from _all_reduces(gangs, amount)
            yield from _training_lines(_train({**gangs, ALONE: alone}, amount), _peer(gangs[PEER]))
        gangs = {PIPELINE: _start(running, PIPELINE), ONE_CORE: _start(running, ONE_CORE), ALONE: alone}
        yield pipeline_line(_train(gangs, amount))


def _start(running: ExitStack, way: str) -> TensorFlowGang:
    print(f"starts: {way}", file=sys.stderr)
    return running.enter_context(TensorFlowGang(way, 1 if way in (ALONE, ONE_CORE) else RANKS))


def _peer(gang: TensorFlowGang) -> str:
    return f"tensorflow {gang.about['tensorflow']} over gRPC"


def _train(gangs: Mapping[str, TensorFlowGang], amount: Amount) -> dict[str, Trained]:
    print(f"trains: {', '.join(gangs)}", file=sys.stderr)
    return train_in_turns(
        gangs,
        batch=BATCH,
        num_warm_up=amount.num_warm_up,
        num_steps=amount.num_steps,
        num_turns=amount.num_turns,
    )


def _all_reduces(gangs: Mapping[str, TensorFlowGang], amount: Amount) -> Iterator[Line]:
    contenders = [Contender(f"{way} {mode}", gang, mode) for way, gang in gangs.items() for mode in MODES]
    for size in SIZES:
        print(f"reduces: {size} B", file=sys.stderr)
        series = alternate(contenders, "all_reduce", size, amount.effort, seed=SEED)
        for mode, words in MODES.items():
            peer = series[f"{PEER} {mode}"]
            for way in OURS:
                case = f"{way} allreduce {size} B {words}, {RANKS} ranks"
                yield _all_reduce_line(case, series[f"{way} {mode}"], peer, _peer(gangs[PEER]))


def _all_reduce_line(case: str, ours: Series, peer: Series, peer_name: str) -> Line:
    problems = [*ours.problems, *peer.problems]
    return Line(
        case=case,
        metric="median",
        unit="us",
        better="lower",
        ours=ours.median_s * 1e6,
        peers={peer_name: peer.median_s * 1e6},
        peer_note="CollectiveReduceV2 by itself, with the strategy's servers",
        goal=">= 1x TensorFlow",
        met=ours.median_s <= peer.median_s,
        samples=len(ours.times_s),
        spread=ours.spread,
        verified=not problems,
        details={"problems": problems[:3]} if problems else {},
    )


def _training_lines(trained: Mapping[str, Trained], peer_name: str) -> Iterator[Line]:
    rates = {way: 1 / median_and_spread(one.seconds)[0] for way, one in trained.items()}
    for way in OURS:
        told = told_of_losses(trained, (way, PEER))
        yield Line(
            case=f"{way} training of MNIST's model, batch of {BATCH} on {RANKS} ranks",
            metric="rate",
            unit="steps/s",
            better="higher",
            ours=rates[way],
            peers={peer_name: rates[PEER]},
            peer_note="MultiWorkerMirroredStrategy with a loop of its own",
            goal=f">= 1x TensorFlow, losses of one process within {LOSS_TOLERANCE:g}",
            met=rates[way] >= rates[PEER] and not told["problems"],
            samples=len(trained[way].seconds),
            spread=median_and_spread(trained[way].seconds)[1],
            verified=not told["problems"],
            details={**told, "one process, all cores": rates[ALONE]},
        )


def pipeline_line(trained: Mapping[str, Trained]) -> Line:
    """Return the line of the pipeline; `trained` has it, and one process on all cores and on one."""
    step_s, spread = median_and_spread(trained[PIPELINE].seconds)
    peers = {way: median_and_spread(trained[way].seconds)[0] for way in (ONE_CORE, ALONE)}
    by_rank, (single,) = (
        [median_and_spread(list(turns))[0] * 1e3 for turns in zip(*trained[way].processor_s, strict=True)]
        for way in (PIPELINE, ONE_CORE)
    )
    told = told_of_losses(trained, (PIPELINE, ONE_CORE))
    return Line(
        case=f"smp training of MNIST's model, batch of {BATCH} in {MICROBATCHES} pieces over {PARTITIONS} partitions",
        metric="step",
        unit="ms",
        better="lower",
        ours=step_s * 1e3,
        peers={f"one process{way.removeprefix(ALONE)}": one_s * 1e3 for way, one_s in peers.items()},
        peer_note="each rank of ours has one core; one process that is not held to one core has all",
        bound=pipeline_bound_s(peers[ONE_CORE], PARTITIONS, MICROBATCHES) * 1e3,
        bound_note="one process on one core * (m + p - 1) / (p * m): equal partitions, nothing for messages",
        goal=f"faster than one process on one core, its losses within {LOSS_TOLERANCE:g}",
        met=step_s <= peers[ONE_CORE] and not told["problems"],
        samples=len(trained[PIPELINE].seconds),
        spread=spread,
        verified=not told["problems"],
        details={
            **told,
            "of one process on one core": peers[ONE_CORE] / step_s,
            "processor time of a step by rank, ms": by_rank,
            "processor time of a step of one process on one core, ms": single,
        },
    )


def pipeline_bound_s(alone_s: float, partitions: int, microbatches: int) -> float:
    """Return the shortest step of a pipeline of equal partitions, of which one process needs `alone_s`.

    Of m + p - 1 moments each rank works in m, so that (p - 1) / (m + p - 1) of a step is idle.
    """
    return alone_s / partitions * (microbatches + partitions - 1) / microbatches


def told_of_losses(trained: Mapping[str, Trained], ways: tuple[str, ...]) -> dict[str, Any]:
    """Return how far the losses of these ways are from those of one process, and the problems with them."""
    differences = {way: trained[way].differences(trained[ALONE]) for way in ways}
    problems = [f"{way}, {problem}" for way in ways for problem in trained[way].problems]
    problems += [
        f"{way}: losses differ from those of one process by {difference:.2g}, expected at most {LOSS_TOLERANCE:g}"
        for way, difference in differences.items()
        if not difference <= LOSS_TOLERANCE
    ]
    ends = {way: trained[way].losses[-1] for way in (*ways, ALONE)}
    return {"loss": ends, "largest difference of losses": differences, "problems": problems[:3]}
