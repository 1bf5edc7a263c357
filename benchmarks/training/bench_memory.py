"""Memory that checkpointing and offloading save, and the time that they cost, beside torch's own.

A stack of GPT-like layers on one core; four microbatches are alive at once. Each way runs in a process of its own, in
turns. `kept_bytes` is what malloc has given out more after forward than before it: activations, to the byte.

    bound of checkpointing = the processor's time of a step that keeps all + of one more forward
    bound of offloading    = the processor's time of a checkpointed step + of copying the bytes out and back; for the
                             clock, a checkpointed step, or as long as the disk takes for the bytes, if that is longer

Time of the processor counts all threads, and does not depend on what else the machine does; the clock does.
    bound in memory        = the inputs of what is recomputed, besides the batch; of offloading, nothing

The graph itself, without tensors, takes some 25 kB a layer and microbatch in all ways that recompute.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lines import ROOT, Line, median_and_spread

TRAIN_PYTHON = ROOT / ".venvs/train/bin/python"
PLAIN, TORCH = "plain", "torch checkpoint"
CHECKPOINTED = {"each": 7, "group_4": 1, "contiguous": 0}  # inputs that are kept, of 8 layers, besides the batch
DISK, DISK_PEERS = "disk", ("torch save_on_cpu", "torch.save hooks")
NUM_MICROBATCHES = 4
INPUT_BYTES = 2 * 256 * 256 * 4  # as in `memory_training`, which needs torch
TIME_GOAL = 1.05  # of the bound
TORCH_GOAL = 1.01  # of the memory that torch's own checkpoint keeps
DISK_GOAL = 0.1  # of the memory that checkpointing keeps
LIMIT_S = 600.0
MMAP_THRESHOLD_BYTES = 1 << 16  # of malloc: what is freed goes back at once, so that peaks are those of tensors


def run(quick: bool) -> Iterator[Line]:
    """Measure all ways."""
    ways = [PLAIN, TORCH, *CHECKPOINTED, DISK, *DISK_PEERS]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for turn in range(1 if quick else 3):
        for way in ways if turn % 2 == 0 else reversed(ways):
            print(f"turn {turn}: {way}", file=sys.stderr)
            found[way].append(_measure(way, 1 if quick else 4))
    values = {way: _Values(answers) for way, answers in found.items()}
    plain = values[PLAIN]
    for strategy, num_inputs in CHECKPOINTED.items():
        bound = num_inputs * NUM_MICROBATCHES * INPUT_BYTES
        peers = {"torch checkpoint": values[TORCH]} if strategy == "each" else {}
        yield from _lines(
            strategy, values, peers=peers, bound_bytes=bound, bound_cpu_s=plain.cpu_s + plain.forward_cpu_s
        )
    disk = values[DISK]
    rates = {name: statistics.median(answer["rates"][name] for answer in found[DISK]) for name in ("write", "read")}
    num_bytes = (CHECKPOINTED["each"] + 1) * NUM_MICROBATCHES * INPUT_BYTES  # the batch too
    copied_s = num_bytes / rates["write"] + num_bytes / rates["read"]
    yield from _lines(
        DISK,
        values,
        peers={name: values[name] for name in DISK_PEERS},
        bound_bytes=0,
        bound_cpu_s=values["each"].cpu_s + copied_s,
        bound_s=max(values["each"].step_s, copied_s),
        details={"rates": rates, "counts": disk.answers[-1]["counts"], "copied_s": copied_s},
    )


class _Values:
    """Measurements by the processes of one way."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.answers = answers
        self.steps_s = [second for answer in answers for second in answer["step_s"]]
        self.step_s, self.spread = median_and_spread(self.steps_s)
        self.cpu_s, self.cpu_spread = median_and_spread([s for answer in answers for s in answer["cpu_s"]])
        self.forward_cpu_s = statistics.median(second for answer in answers for second in answer["forward_cpu_s"])
        self.kept_bytes = statistics.median(count for answer in answers for count in answer["kept_bytes"])
        self.peak_bytes = statistics.median(count for answer in answers for count in answer["peak_bytes"])
        self.gradients = {answer["gradients"] for answer in answers}


def _measure(way: str, num_steps: int) -> dict[str, Any]:
    (ROOT / "build").mkdir(exist_ok=True)  # a disk, where /tmp may be memory
    with tempfile.TemporaryDirectory(prefix="clary-memory-", dir=ROOT / "build") as folder:
        done = subprocess.run(
            [str(TRAIN_PYTHON), "-m", "benchmarks.training.memory_training", way, folder, str(num_steps)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                "OMP_NUM_THREADS": "1",
                "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD_BYTES),
            },
        )
        if done.returncode != 0:
            raise RuntimeError(f"{way}: ended with {done.returncode}\n{done.stderr}")
        left = os.listdir(Path(folder))
        if left:
            raise RuntimeError(f"{way}: left files behind: {left}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _lines(
    way: str,
    values: dict[str, _Values],
    *,
    peers: dict[str, _Values],
    bound_bytes: float,
    bound_cpu_s: float,
    bound_s: float | None = None,
    details: dict[str, Any] | None = None,
) -> Iterator[Line]:
    ours, plain = values[way], values[PLAIN]
    more = {
        "plain_kept_bytes": plain.kept_bytes,
        "plain_step_s": plain.step_s,
        "plain_cpu_s": plain.cpu_s,
        "plain_forward_cpu_s": plain.forward_cpu_s,
        "plain_peak_bytes": plain.peak_bytes,
        **(details or {}),
    }
    limit = DISK_GOAL * values["each"].kept_bytes if way == DISK else TORCH_GOAL * values[TORCH].kept_bytes
    verified = ours.gradients == plain.gradients and len(plain.gradients) == 1  # the same bits
    common: dict[str, Any] = {"case": way, "better": "lower", "verified": verified, "samples": len(ours.steps_s)}
    yield Line(
        **common,
        metric="kept_bytes",
        unit="bytes",
        ours=ours.kept_bytes,
        peers={name: peer.kept_bytes for name, peer in peers.items()},
        bound=bound_bytes,
        bound_note="inputs of what is recomputed",
        goal=f"<= {limit:.0f}: {TORCH_GOAL:g} of torch's, for disk {DISK_GOAL:g} of checkpointing's",
        met=ours.kept_bytes <= limit,
        details=more,
    )
    yield Line(
        **common,
        metric="peak_bytes",
        unit="bytes",
        ours=ours.peak_bytes,
        peers={name: peer.peak_bytes for name, peer in peers.items()},
        details=more,
    )
    yield Line(
        **common,
        metric="cpu_s",
        unit="s",
        ours=ours.cpu_s,
        spread=ours.cpu_spread,
        peers={name: peer.cpu_s for name, peer in peers.items()},
        bound=bound_cpu_s,
        bound_note="a checkpointed step + copies" if way == DISK else "all kept + one forward",
        goal=f"<= {TIME_GOAL:g} of the bound",
        met=ours.cpu_s <= TIME_GOAL * bound_cpu_s,
        details=more,
    )
    yield Line(
        **common,
        metric="step_s",
        unit="s",
        ours=ours.step_s,
        spread=ours.spread,
        peers={name: peer.step_s for name, peer in peers.items()},
        bound=bound_s,
        bound_note="a checkpointed step, or the disk" if bound_s else "",
        details=more,
    )
