"""Starts training processes for the benchmarks of compilation and precision, and reads their answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.lines import ROOT, median_and_spread
from benchmarks.service import TRAIN_PYTHON

LIMIT_S = 600.0  # a cold compilation of one model on a busy machine
MODELS = ("bert", "gpt", "resnet")
FIRST = 2  # steps that are not counted: compilation, memory that is touched first
LOAD_NOTE = (
    "one thread, processor's time; other work ran beside it, see load at begin and end, and the clock, in details"
)


@dataclass(frozen=True)
class Answer:
    """The measurements of one process: seconds of its steps, the first from the start of the process, and losses.

    Args:
        seconds: of the clock.
        processor_s: of the processor, with compilers that the process has run: what else the machine does counts less.
        losses: of the steps.
        words: lines of the hook.
    """

    seconds: list[float]
    processor_s: list[float]
    losses: list[float]
    words: str

    @property
    def first_step_s(self) -> float:
        """The processor's time from the start of the process to the end of its first step."""
        return self.processor_s[0]

    @property
    def later_s(self) -> list[float]:
        """The processor's seconds of the steps that count."""
        return self.processor_s[FIRST:]

    def furthest_from(self, other: Answer, *, num_steps: int | None = None) -> float:
        """Return the greatest relative difference of two losses of one step.

        Args:
            other: of a run with as many steps.
            num_steps: compare the first steps only; None compares all.
        """
        return max(abs(a / b - 1) for a, b in list(zip(self.losses, other.losses, strict=True))[:num_steps])


def train(
    model: str, num_steps: int, *, quick: bool, own: bool = False, variables: Mapping[str, str] | None = None
) -> Answer:
    """Run one process to its end.

    Args:
        model: of `MODELS`.
        num_steps: to train.
        quick: a quarter of the layers.
        own: autocast of the program's own.
        variables: of its environment.
    Raises: RuntimeError with the words of a process that failed; subprocess.TimeoutExpired.
    """
    print(f"{model}: {variables or 'plain'}{' own autocast' if own else ''}", file=sys.stderr)
    numbers = [str(num_steps), str(int(quick)), str(int(own))]
    done = subprocess.run(
        [str(TRAIN_PYTHON), "-m", "benchmarks.compilation.compile_run", model, *numbers],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            **(variables or {}),
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{model}: ended with {done.returncode}\n{done.stderr[-4000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    words = "; ".join(line for line in done.stderr.splitlines() if line.startswith("clary: "))
    return Answer(answer["seconds"], answer["processor_s"], answer["losses"], words)


def clock_s(answers: list[Answer]) -> float:
    """Return the median of the steps that count, by the clock."""
    return median_and_spread([second for answer in answers for second in answer.seconds[FIRST:]])[0]


def step_s(answers: list[Answer]) -> tuple[float, float | None]:
    """Return the median of the steps of several processes, and its spread."""
    return median_and_spread([second for answer in answers for second in answer.later_s])
