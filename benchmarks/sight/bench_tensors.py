"""Cost for a training of saving all weights, every 10 steps and every 200.

Three models that are the same to the bit are trained in turns of ten steps: one without a hook, one with ours, one
that writes on the training thread with `torch.save`. A block of steps saves once. Losses are compared bit by bit, and
each tensor of each block is looked for afterwards.

    slowdown = median over blocks of (seconds of a block with a hook / seconds of the same block without one)

The same of the training thread's processor time says what a hook costs where other work holds the processors; that of
its middle step, and of the middle one of those that save, says so where even that is disturbed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.lines import ROOT, Line, median_and_spread

TRAIN_PYTHON = ROOT / ".venvs/train/bin/python"
MODEL, QUICK_MODEL = "transformer", "small-transformer"
CASES = ((10, 30, 12, 1.1, 1.9), (200, 6, 1, 1.01, 1.2))  # steps, pairs, pairs of --quick, goal, smdebug's paper
LIMIT_S = 3600.0


def run(quick: bool) -> Iterator[Line]:
    """Measure both intervals."""
    (ROOT / "build").mkdir(exist_ok=True)  # a disk, where /tmp may be memory
    for interval, pairs, quick_pairs, goal, paper in CASES:
        print(f"all weights every {interval} steps", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="clary-tensors-", dir=ROOT / "build") as folder:
            answer = _rank(
                {
                    "folder": folder,
                    "model": QUICK_MODEL if quick else MODEL,
                    "interval": interval,
                    "pairs": quick_pairs if quick else pairs,
                }
            )
        yield from _lines(answer, interval, goal, paper)


def _lines(answer: dict[str, Any], interval: int, goal: float, paper: float) -> Iterator[Line]:
    for metric, key in (
        ("slowdown", "seconds"),
        ("slowdown in the training thread's processor time", "thread_seconds"),
    ):
        found = answer[key]
        ratios = {
            name: [one / base for one, base in zip(found[name], found["none"], strict=True)]
            for name in ("ours", "plain")
        }
        ours, spread = median_and_spread(ratios["ours"])
        plain, _ = median_and_spread(ratios["plain"])
        yield Line(
            case=f"{answer['num_bytes'] / 1e6:.1f} MB of weights every {interval} steps",
            metric=metric,
            unit="times",
            better="lower",
            ours=ours,
            peers={"torch.save on the training thread": plain},
            peer_note=f"smdebug's own paper says {paper:g} times",
            goal=f"<= {goal:g}",
            met=ours <= goal,
            samples=len(found["none"]),
            spread=spread,
            verified=answer["verified"] and answer["num_dropped"] == 0,
            details=answer,
        )
    steps = answer["thread_step_seconds"]
    ours = steps["ours"] / steps["none"]
    yield Line(
        case=f"{answer['num_bytes'] / 1e6:.1f} MB of weights every {interval} steps",
        metric="slowdown in the training thread's processor time, of middle steps",
        unit="times",
        better="lower",
        ours=ours,
        peers={"torch.save on the training thread": steps["plain"] / steps["none"]},
        goal=f"<= {goal:g}",
        met=ours <= goal,
        samples=len(answer["seconds"]["none"]) * interval,
        verified=answer["verified"] and answer["num_dropped"] == 0,
        details={"seconds": steps},
    )


def _rank(orders: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [str(TRAIN_PYTHON), "-m", "benchmarks.sight.tensors_rank", json.dumps(orders)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
