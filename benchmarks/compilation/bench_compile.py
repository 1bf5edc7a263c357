"""Models compiled through the hook of jobs, beside eager: a step, and the first step with a cold and a warm cache.

Each turn trains a model eagerly, compiled with an empty cache, and compiled with what that has left, in processes of
their own that take turns; the losses of all must agree, dropout included. A ratio below 1 is a loss: compilation does
not help there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.compilation.compile_turns import LOAD_NOTE, MODELS, Answer, clock_s, step_s, train
from benchmarks.lines import ROOT, Line

# An eager run whose first weights differ by 1e-7 differs by 7e-4 after three steps, and by 1e-2 after eight.
NUM_COMPARED = {"resnet": 2}  # steps; the other models: all
TOLERANCE = 1e-3  # of losses, relative: Inductor adds in another order, and steps go on from that
GOAL = 1.0  # of eager execution's step


def run(quick: bool) -> Iterator[Line]:
    """Measure the models; with `quick` the GPT-shaped one alone."""
    for model in MODELS[1:2] if quick else MODELS:
        yield from _lines(model, quick=quick)


def _lines(model: str, *, quick: bool) -> Iterator[Line]:
    load = [os.getloadavg()[0]]
    eager: list[Answer] = []
    cold: list[Answer] = []
    warm: list[Answer] = []
    num_steps = 8 if quick else 20
    for _ in range(1 if quick else 2):
        with tempfile.TemporaryDirectory(prefix="clary-compile-", dir=ROOT / "build") as folder:
            compiled = {"CLARY_COMPILE": "1", "TORCHINDUCTOR_CACHE_DIR": folder}
            eager.append(train(model, num_steps, quick=quick))
            cold.append(train(model, num_steps, quick=quick, variables=compiled))
            warm.append(train(model, num_steps, quick=quick, variables=compiled))
    load.append(os.getloadavg()[0])
    differences = [one.furthest_from(eager[0], num_steps=NUM_COMPARED.get(model)) for one in (*cold, *warm)]
    verified = max(differences) <= TOLERANCE and all("compiled" in one.words for one in (*cold, *warm))
    ours, spread = step_s([*cold, *warm])
    peer, _ = step_s(eager)
    details: dict[str, Any] = {"loss_difference": max(differences), "log": warm[-1].words, "load": load}
    details["clock_s"] = {"eager": clock_s(eager), "compiled": clock_s([*cold, *warm])}
    common: dict[str, Any] = {
        "case": model,
        "unit": "s",
        "better": "lower",
        "verified": verified,
        "peer_note": LOAD_NOTE,
    }
    yield Line(
        **common,
        metric="step_cpu_s",
        ours=ours,
        spread=spread,
        peers={"eager": peer},
        samples=sum(len(one.later_s) for one in (*cold, *warm)),
        goal=f"<= {GOAL:g} of eager",
        met=ours <= GOAL * peer,
        details=details,
    )
    first = {name: min(one.first_step_s for one in found) for name, found in (("cold", cold), ("eager", eager))}
    yield Line(
        **common,
        metric="first_step_cpu_s",
        ours=min(one.first_step_s for one in warm),
        peers={"cold cache": first["cold"]},
        samples=len(warm),
        details={
            **details,
            "eager": first["eager"],
            "clock_first_s": {"cold": min(one.seconds[0] for one in cold), "warm": min(one.seconds[0] for one in warm)},
        },
    )
