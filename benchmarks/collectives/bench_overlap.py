"""How much of communication hides behind the backward pass, with DistributedDataParallel over smddp and over gloo.

The backward pass is emulated: every layer sleeps, then has its gradient, so that two cores do not become the network.
Two hosts at 1 Gbit/s. Ours has the buckets that `tune_buckets` chose in its first steps; gloo has torch's default ones
(25 MiB after a first of 1 MiB), and, as another peer, one bucket a layer. Communication is measured by itself in the
same run; the backward pass is made so long that our communication takes the given part of it. A step without
communication is one whose buckets go through DistributedDataParallel, copies and all, and are not sent.

    exposed = step with communication - step without
    bound = the later of: step without and the last layer's bucket; the first layer's gradient and all communication
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.collectives.collective_gang import Gang
from benchmarks.collectives.collective_lab import LabShape, running_lab
from benchmarks.lines import Line, median_and_spread

OURS, OURS_BY_LAYER, ALONE = "tuned", "smddp by layer", "alone"
PEER, PEER_BY_LAYER = "gloo", "gloo by layer"
MODELS = {  # door and buckets
    OURS: ("smddp", "tuned"),
    OURS_BY_LAYER: ("smddp", "layer"),
    PEER: ("gloo", "default"),
    PEER_BY_LAYER: ("gloo", "layer"),
    ALONE: ("gloo", "none"),
}
SHAPE = LabShape(num_hosts=2, num_ranks=2, rate_mbit_s=1000)
MIB = 1 << 20
NUM_LAYERS, LAYER_BYTES = 32, MIB
PARTS = (0.5, 0.8, 1.2, 2.0)  # communication over backward
HIDDEN_UP_TO = 0.8
EXPOSED_GOAL_PERCENT = 10.0
BOUND_GOAL = 1.05
TURNS, STEPS_A_TURN = 6, 3
SETTLING_STEPS = 8  # until buckets are tuned
SEED = 60_000


@dataclass
class _Times:
    communication_s: float
    step_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MODELS})
    problems: list[str] = field(default_factory=list)
    buckets: str = ""

    @property
    def alone_s(self) -> float:
        return statistics.median(self.step_s[ALONE])

    def bound_s(self, num_layers: int) -> float:
        """Return the shortest step that these times allow."""
        return max(
            self.alone_s + self.communication_s / num_layers,
            self.alone_s / num_layers + self.communication_s,
        )

    def exposed_percent(self, step_s: float) -> float:
        """Return by how much of communication a step is longer than one without; noise below 0 counts as 0."""
        return max(0.0, 100 * (step_s - self.alone_s) / self.communication_s)


def run(quick: bool) -> Iterator[Line]:
    """Measure every part."""
    num_layers = 8 if quick else NUM_LAYERS
    with running_lab(SHAPE, with_mpi=False) as lab:
        gang = lab.torch
        gang.ask({"do": "open", "door": "smddp", "backend": "smddp", "environment": {}})
        for part in PARTS[1:2] if quick else PARTS:
            print(f"communication over backward: {part:g}", file=sys.stderr)
            order = {"do": "begin_overlap", "models": MODELS, "num_layers": num_layers, "layer_bytes": LAYER_BYTES}
            gang.ask(order | {"seed": SEED})
            yield from _lines(part, num_layers, gang, _measure(gang, part, 1 if quick else TURNS))


def _measure(gang: Gang, part: float, num_turns: int) -> _Times:
    communication = gang.ask({"do": "communicate", "model": OURS, "num_samples": 5})
    times = _Times(statistics.median(_slowest(communication)))
    for turn in range(num_turns + 1):
        for name in MODELS if turn % 2 == 0 else reversed(MODELS):
            num_steps = STEPS_A_TURN if turn else SETTLING_STEPS
            order = {"do": "step", "model": name, "backward_s": times.communication_s / part, "num_steps": num_steps}
            answers = gang.ask(order | {"checked": name != ALONE})
            if turn:
                times.step_s[name] += _slowest(answers)
            times.problems += [problem for answer in answers for problem in answer["problems"]]
            times.buckets = answers[0]["buckets"] or times.buckets
    return times


def _slowest(answers: list[dict[str, Any]]) -> list[float]:
    return [max(seconds) for seconds in zip(*(answer["seconds"] for answer in answers), strict=True)]


def _lines(part: float, num_layers: int, gang: Gang, times: _Times) -> Iterator[Line]:
    case = f"comm_over_backward={part:g},hosts={SHAPE.num_hosts},ranks={SHAPE.num_ranks},{SHAPE.case}"
    medians = {name: statistics.median(seconds) for name, seconds in times.step_s.items()}
    peers = {f"{name} (torch {gang.about['torch']})": medians[name] for name in (PEER, PEER_BY_LAYER)}
    step_s, spread = median_and_spread(times.step_s[OURS])
    bound_s = times.bound_s(num_layers)
    exposed_percent = times.exposed_percent(step_s)
    hides = part <= HIDDEN_UP_TO
    yield Line(
        case=case,
        metric="step_s",
        unit="s",
        better="lower",
        ours=step_s,
        peers=peers,
        peer_note="gloo with torch's default buckets, and with one a layer",
        bound=bound_s,
        bound_note="the later of all but communication + last layer and first gradient + all communication",
        goal="" if hides else f"<= {BOUND_GOAL:g} of the bound",
        met=None if hides else step_s <= BOUND_GOAL * bound_s,
        samples=len(times.step_s[OURS]),
        spread=spread,
        verified=not times.problems,
        details={
            "layers": num_layers,
            "layer_bytes": LAYER_BYTES,
            "communication_s": times.communication_s,
            "without_communication_s": times.alone_s,
            "smddp_by_layer_s": medians[OURS_BY_LAYER],
            "buckets": times.buckets,
        },
    )
    yield Line(
        case=case,
        metric="exposed_percent",
        unit="%",
        better="lower",
        ours=exposed_percent,
        peers={name: times.exposed_percent(seconds) for name, seconds in peers.items()},
        peer_note="of our communication, so that one step is compared with another",
        bound=times.exposed_percent(bound_s),
        bound_note="the last layer at least, or what communication takes longer than backward",
        goal=f"<= {EXPOSED_GOAL_PERCENT:g}" if hides else "",
        met=exposed_percent <= EXPOSED_GOAL_PERCENT if hides else None,
        samples=len(times.step_s[OURS]),
        verified=not times.problems,
        details={"smddp_by_layer": times.exposed_percent(medians[OURS_BY_LAYER])},
    )
