"""sagemaker_amp beside float32, and beside autocast of the program itself: a step, and the loss.

On a processor without instructions for bfloat16 autocast costs time: a ratio below 1 is a loss, and said as such.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator

from benchmarks.compilation.compile_turns import LOAD_NOTE, MODELS, Answer, clock_s, step_s, train
from benchmarks.lines import Line

TOLERANCE = 0.01  # of the loss at the end
LAST = 5  # steps at the end


def run(quick: bool) -> Iterator[Line]:
    """Measure the models; with `quick` the GPT-shaped one alone."""
    for model in MODELS[1:2] if quick else MODELS:
        yield _line(model, quick=quick)


def _line(model: str, *, quick: bool) -> Line:
    load = [os.getloadavg()[0]]
    num_steps = 8 if quick else 30
    full: list[Answer] = []
    own: list[Answer] = []
    ours: list[Answer] = []
    for _ in range(1 if quick else 2):
        full.append(train(model, num_steps, quick=quick))
        own.append(train(model, num_steps, quick=quick, own=True))
        ours.append(train(model, num_steps, quick=quick, variables={"CLARY_AMP": "1"}))
    load.append(os.getloadavg()[0])
    ends = {name: _end(found[0]) for name, found in (("float32", full), ("own", own), ("ours", ours))}
    difference = abs(ends["ours"] / ends["float32"] - 1)
    seconds, spread = step_s(ours)
    return Line(
        case=model,
        metric="step_cpu_s",
        unit="s",
        better="lower",
        ours=seconds,
        spread=spread,
        peers={"float32": step_s(full)[0], "autocast of the program": step_s(own)[0]},
        peer_note=LOAD_NOTE,
        samples=sum(len(one.later_s) for one in ours),
        goal=f"loss at the end within {TOLERANCE:g} of float32's",
        met=difference <= TOLERANCE,
        verified=difference <= TOLERANCE and all("bfloat16" in one.words for one in ours),
        details={
            "losses_at_end": ends,
            "loss_difference": difference,
            "log": ours[-1].words,
            "load": load,
            "clock_s": clock_s(ours),
        },
    )


def _end(answer: Answer) -> float:
    return statistics.mean(answer.losses[-LAST:])
