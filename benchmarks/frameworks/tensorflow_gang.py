"""Ranks of TensorFlow that wait for orders, a gang for each way, and trainings of several gangs by turns."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.collectives.collective_gang import Gang
from benchmarks.lines import ROOT
from benchmarks.service import free_port

PYTHON = ROOT / ".venvs/tensorflow/bin/python"
PARTITIONS, MICROBATCHES = 2, 4
"""Of the pipeline."""
_WAITING_LIMIT_S = 120


class TensorFlowGang(Gang):
    """Running ranks of one way; a context manager that ends all of them.

    Args:
        way: of `tensorflow_ways.WAYS`.
    Raises: GangError as `Gang`.
    """

    def __init__(self, way: str, num_ranks: int) -> None:
        ports = [free_port() for _ in range(num_ranks)]
        super().__init__(
            way,
            num_ranks,
            entries=[_entry(rank, ports) for rank in range(num_ranks)],
            environment={
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{ROOT / 'src' / 'clary' / 'compat'}",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "CLARY_COLLECTIVE_SECRET": secrets.token_hex(32),
                "CLARY_PARALLEL_TIMEOUT_S": str(_WAITING_LIMIT_S),
            },
        )

    def _commands(self, folder: Path) -> list[list[str]]:
        program = [str(PYTHON), "-m", "benchmarks.frameworks.tensorflow_rank", self.kind, str(folder)]
        return [[*entry, *program, str(self.num_ranks), str(rank)] for rank, entry in enumerate(self._entries)]


def _entry(rank: int, ports: list[int]) -> list[str]:
    """Return the words that give a rank its variables: those of launchers, and TF_CONFIG where there are several."""
    variables = {
        "RANK": rank,
        "WORLD_SIZE": len(ports),
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": len(ports),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": ports[0],
        "CLARY_HOROVOD_PORT": ports[0],
    }
    words = ["env", *(f"{name}={value}" for name, value in variables.items())]
    if len(ports) > 1:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        words.append("TF_CONFIG=" + json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}))
    return words


@dataclass
class Trained:
    """A training of one gang: the slowest rank's seconds of each timed step, and the losses of all steps.

    Args:
        processor_s: by turn, of one step on each rank.
        problems: losses that ranks do not agree on, or that are not numbers.
    """

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    processor_s: list[list[float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, answers: list[dict[str, Any]], *, is_timed: bool) -> None:
        """Add the answers of all ranks of the gang to one turn."""
        if is_timed:
            self.seconds += [max(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)]
            self.processor_s.append([answer["processor_s"] for answer in answers])
        for losses in zip(*(answer["losses"] for answer in answers), strict=True):
            if not all(math.isfinite(loss) and math.isclose(loss, losses[0], rel_tol=1e-6) for loss in losses):
                self.problems.append(f"step {len(self.losses)}: ranks have losses {list(losses)}")
            self.losses.append(losses[0])

    def differences(self, other: Trained) -> float:
        """Return the largest difference of a step's loss from that of `other`, relative to it; infinite if one is no
        number.

        Raises: ValueError if they have not taken the same number of steps, or none.
        """
        if not self.losses:
            raise ValueError("no step was taken: there are no losses to compare")
        pairs = zip(self.losses, other.losses, strict=True)
        relative = [abs(own - theirs) / abs(theirs) for own, theirs in pairs]
        return max(one if math.isfinite(one) else math.inf for one in relative)


def train_in_turns(
    gangs: Mapping[str, Gang], *, batch: int, num_warm_up: int, num_steps: int, num_turns: int
) -> dict[str, Trained]:
    """Train one model in each gang: a few steps untimed, then turns of `num_steps`, in an order that rotates.

    Raises: GangError if a rank failed.
    """
    trained = {name: Trained() for name in gangs}
    names = list(gangs)
    for name, gang in gangs.items():
        gang.ask({"do": "begin_training", "batch": batch})
        trained[name].add(gang.ask({"do": "train", "num_steps": num_warm_up}), is_timed=False)
    for turn in range(num_turns):
        for index in range(len(names)):
            name = names[(turn + index) % len(names)]
            trained[name].add(gangs[name].ask({"do": "train", "num_steps": num_steps}), is_timed=True)
    return trained
