"""How much of communication hides behind the backward pass, with DistributedDataParallel over smddp and over gloo.

The backward pass is emulated: every layer sleeps, then has its gradient, so that two cores do not become the network.
Two hosts at 1 Gbit/s, one bucket a layer. Communication is measured by itself in the same run, for each library; the
backward pass is made so long that our communication takes the given part of it.

    exposed = step with communication - step without
    bound = the later of: backward and the last bucket; the first bucket's gradient and all communication
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.collective_gang import Gang
from benchmarks.collective_lab import LabShape, running_lab
from benchmarks.lines import Line, median_and_spread

OURS, PEER = "smddp", "gloo"
SHAPE = LabShape(num_hosts=2, num_ranks=2, rate_mbit_s=1000)
MIB = 1 << 20
NUM_LAYERS, LAYER_BYTES = 32, MIB
PARTS = (0.5, 0.8, 1.2, 2.0)  # communication over backward
HIDDEN_UP_TO = 0.8
EXPOSED_GOAL_PERCENT = 10.0
BOUND_GOAL = 1.05
TURNS, STEPS_A_TURN = 6, 3
SEED = 60_000


@dataclass
class _Times:
    communication_s: float
    alone_s: list[float] = field(default_factory=list)  # steps without communication
    step_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def bound_s(self, compute_s: float, num_layers: int) -> float:
        """Return the shortest step that these times allow."""
        return max(
            compute_s + self.communication_s / num_layers,
            compute_s / num_layers + self.communication_s,
        )

    def exposed_percent(self, step_s: float, compute_s: float) -> float:
        """Return by how much of its communication a step is longer than one without; noise below 0 counts as 0."""
        return max(0.0, 100 * (step_s - compute_s) / self.communication_s)


def run(quick: bool) -> Iterator[Line]:
    """Measure every part."""
    num_layers = 8 if quick else NUM_LAYERS
    with running_lab(SHAPE, with_mpi=False) as lab:
        gang = lab.torch
        gang.ask({"do": "open", "door": OURS, "backend": OURS, "environment": {}})
        order = {"do": "begin_overlap", "doors": [OURS, PEER], "num_layers": num_layers, "layer_bytes": LAYER_BYTES}
        gang.ask(order | {"seed": SEED})
        for part in PARTS[1:2] if quick else PARTS:
            print(f"communication over backward: {part:g}", file=sys.stderr)
            yield from _lines(part, num_layers, gang, _measure(gang, part, 1 if quick else TURNS))


def _measure(gang: Gang, part: float, num_turns: int) -> dict[str, _Times]:
    times = {door: _Times(_communication_s(gang, door)) for door in (OURS, PEER)}
    backward_s = times[OURS].communication_s / part
    for turn in range(num_turns):
        for door in (OURS, PEER) if turn % 2 == 0 else (PEER, OURS):
            order = {"do": "step", "door": door, "backward_s": backward_s, "num_steps": STEPS_A_TURN}
            # DistributedDataParallel settles its buckets after the first step with communication.
            if turn == 0:
                gang.ask(order | {"with_sync": True})
            times[door].alone_s += _slowest(gang.ask(order | {"with_sync": False}))
            answers = gang.ask(order | {"with_sync": True})
            times[door].step_s += _slowest(answers)
            times[door].problems += [problem for answer in answers for problem in answer["problems"]]
    return times


def _communication_s(gang: Gang, door: str) -> float:
    return statistics.median(_slowest(gang.ask({"do": "communicate", "door": door, "num_samples": 5})))


def _slowest(answers: list[dict[str, list[float]]]) -> list[float]:
    return [max(seconds) for seconds in zip(*(answer["seconds"] for answer in answers), strict=True)]


def _lines(part: float, num_layers: int, gang: Gang, times: dict[str, _Times]) -> Iterator[Line]:
    ours, peer = times[OURS], times[PEER]
    peer_name = f"gloo (torch {gang.about['torch']})"
    case = f"comm_over_backward={part:g},hosts={SHAPE.num_hosts},ranks={SHAPE.num_ranks},{SHAPE.case}"
    step_s, spread = median_and_spread(ours.step_s)
    peer_step_s = statistics.median(peer.step_s)
    compute_s = statistics.median(ours.alone_s + peer.alone_s)
    bound_s = ours.bound_s(compute_s, num_layers)
    exposed_percent = ours.exposed_percent(step_s, compute_s)
    hides = part <= HIDDEN_UP_TO
    problems = ours.problems + peer.problems
    details = {
        "layers": num_layers,
        "layer_bytes": LAYER_BYTES,
        "communication_s": {OURS: ours.communication_s, PEER: peer.communication_s},
        "without_communication_s": {OURS: statistics.median(ours.alone_s), PEER: statistics.median(peer.alone_s)},
    }
    yield Line(
        case=case,
        metric="step_s",
        unit="s",
        better="lower",
        ours=step_s,
        peers={peer_name: peer_step_s},
        bound=bound_s,
        bound_note="the later of backward + last bucket and first gradient + all communication, as measured apart",
        goal="" if hides else f"<= {BOUND_GOAL:g} of the bound",
        met=None if hides else step_s <= BOUND_GOAL * bound_s,
        samples=len(ours.step_s),
        spread=spread,
        verified=not problems,
        details=details,
    )
    yield Line(
        case=case,
        metric="exposed_percent",
        unit="%",
        better="lower",
        ours=exposed_percent,
        peers={peer_name: peer.exposed_percent(peer_step_s, compute_s)},
        bound=ours.exposed_percent(bound_s, compute_s),
        bound_note="the last bucket at least, or what communication takes longer than backward",
        goal=f"<= {EXPOSED_GOAL_PERCENT:g}" if hides else "",
        met=exposed_percent <= EXPOSED_GOAL_PERCENT if hides else None,
        samples=len(ours.step_s),
        verified=not problems,
    )
