"""`horovod.torch` over our collectives beside the real Horovod 0.28.1 over gloo: all-reduces and a training.

Both run the same program with the same torch, by turns, two ranks on this host. `make bench` builds the real one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lines import ROOT, Line

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4, 256, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
QUICK_SIZES = (4, 64 * KIB, 4 * MIB)
_RANKS = 2
_LIMIT_S = 300
_PROGRAM = Path(__file__).with_name("horovod_rank.py")
_OURS = ROOT / ".venvs/train/bin/python"
_THEIRS = ROOT / ".venvs/horovod/bin/python"
_BUILT = "lib/python3*/site-packages/horovod"


def run(quick: bool) -> Iterator[Line]:
    """Measure. Raises: RuntimeError if a run fails, with its output."""
    sizes, seconds, steps, turns = (QUICK_SIZES, 0.5, 10, 1) if quick else (SIZES, 1.5, 40, 3)
    arguments = (",".join(map(str, sizes)), str(seconds), str(steps))
    ours, theirs = [], []
    for _ in range(turns):
        ours.append(_measure(_OURS, arguments, _our_variables()))
        if any(_THEIRS.parents[1].glob(_BUILT)):
            theirs.append(_measure(_THEIRS, arguments, {}))
    note = "" if theirs else "the real Horovod is not built: make bench builds it"
    for size in sizes:
        times = [turn["sizes"][str(size)] for turn in ours]
        others = [turn["sizes"][str(size)]["median_s"] for turn in theirs]
        yield Line(
            case=f"allreduce {size} B, {_RANKS} ranks",
            metric="median",
            unit="us",
            better="lower",
            ours=statistics.median(one["median_s"] for one in times) * 1e6,
            peers={"horovod": statistics.median(others) * 1e6} if others else {},
            peer_note=note,
            goal=">= 1x Horovod",
            met=min(others) >= statistics.median(one["median_s"] for one in times) if others else None,
            samples=sum(one["count"] for one in times),
            spread=statistics.median(one["spread"] for one in times),
            verified=all(one["right"] for one in times),
        )
    yield _training_line(ours, theirs, note)


def _training_line(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], note: str) -> Line:
    own = [turn["training"] for turn in ours]
    others = [turn["training"] for turn in theirs]
    step_s = statistics.median(one["median_s"] for one in own)
    return Line(
        case=f"a step of a ResNet-shaped model of {own[0]['tensors']} tensors, {_RANKS} ranks",
        metric="median",
        unit="ms",
        better="lower",
        ours=step_s * 1e3,
        peers={"horovod": statistics.median(one["median_s"] for one in others) * 1e3} if others else {},
        peer_note=note,
        goal=">= 1x Horovod, the same loss",
        met=min(one["median_s"] for one in others) >= step_s if others else None,
        samples=len(own),
        verified=bool(others) and abs(own[0]["loss"] - others[0]["loss"]) < 1e-3,
        details={"loss": own[0]["loss"], "loss of horovod": others[0]["loss"] if others else None},
    )


def _our_variables() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT / 'src' / 'clary' / 'compat'}:{ROOT / 'src'}"}


def _measure(python: Path, arguments: tuple[str, ...], variables: dict[str, str]) -> dict[str, Any]:
    """Run the program once under horovodrun of its environment, and read the output of rank 0."""
    command = [str(python), "-m", "horovod.runner.launch", "-np", str(_RANKS), "--gloo", "-H", f"localhost:{_RANKS}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "PATH": f"{python.parent}:{os.environ['PATH']}", **variables}
    ended = subprocess.run(
        [*command, str(python), str(_PROGRAM), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if ended.returncode or "measured " not in ended.stdout:
        raise RuntimeError(f"{python}: exit code {ended.returncode}: {(ended.stdout + ended.stderr)[-3000:]}")
    found: dict[str, Any] = json.loads(ended.stdout.split("measured ", 1)[1].splitlines()[0])
    return found
