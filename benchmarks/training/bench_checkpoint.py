"""Cost of a checkpoint for training, its rate to the disk, and the speed at which other ranks read it.

One process has a model with Adam's moments in host memory. All ways take turns: one copy of as many bytes into memory
that is there already, `torch.save`, torch's `dcp.async_save`, ours, and a plain write and fsync of the same bytes.

    bound of the stall        = one copy of the bytes, memory to memory, on one core
    copied later              = `async_staging`: what the save and the next optimizer step wait, while a forward and
                                a backward pass run that last at least as long as a copy; its own slowing is told
    bound of the save's rate  = bytes over the plain write; ours includes the copy, planning and making it visible
    pause                     = the longest time in which a loop in Python did not run while the bytes were written

Resharding: 4 ranks save, 2 restore and save, 3 restore, on two folders that are two hosts': what a rank lacks, another
sends. Values are compared bit by bit. `fio`, where it is installed, says what the disk takes without the page cache.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lines import ROOT, Line, median_and_spread

TRAIN_PYTHON = ROOT / ".venvs/train/bin/python"
STATE_MIB, QUICK_STATE_MIB = 480, 240
SAMPLES, QUICK_SAMPLES = 12, 3
RESHARDS = ((4, None, 1), (2, 1, 2), (3, 2, None))  # ranks, step they restore, step they save
STALL_GOAL = 1.2  # of the bound
STAGED_GOAL = 0.1  # of the bound
SAVE_GOAL = 20.0  # times less stall than torch.save
RATE_GOAL = 0.9  # of the plain write
PAUSE_GOAL_S = 0.05  # nothing that a training step would feel
LIMIT_S = 300.0
FIO_BLOCK = "8m"


def run(quick: bool) -> Iterator[Line]:
    """Measure the cost of saves, then resharding."""
    state_mib, samples = (QUICK_STATE_MIB, QUICK_SAMPLES) if quick else (STATE_MIB, SAMPLES)
    (ROOT / "build").mkdir(exist_ok=True)  # a disk, where /tmp may be memory
    with tempfile.TemporaryDirectory(prefix="clary-checkpoint-", dir=ROOT / "build") as folder:
        fio = _fio_rate(Path(folder), state_mib)
        print("cost of a save", file=sys.stderr)
        answer = save_costs(Path(folder), state_mib=state_mib, samples=samples)
        yield from _cost_lines(answer, samples, {} if fio is None else {"fio direct write": fio})
    with tempfile.TemporaryDirectory(prefix="clary-checkpoint-", dir=ROOT / "build") as folder:
        for size, restore, save in RESHARDS:
            print(f"{size} ranks: restore {restore}, save {save}", file=sys.stderr)
            common = {"what": "reshard", "folder": folder, "state_mib": state_mib, "restore": restore, "save": save}
            yield from _reshard_lines(size, _ranks(size, common))


def save_costs(folder: Path, *, state_mib: int, samples: int) -> dict[str, Any]:
    """Return the times of each way to save a state, of one process: lists of seconds, the bytes, `verified`."""
    orders = {"what": "cost", "folder": str(folder), "state_mib": state_mib, "samples": samples}
    return _ranks(1, orders)[0]


def _cost_lines(answer: dict[str, Any], samples: int, rates: dict[str, float]) -> Iterator[Line]:
    num_bytes = answer["num_bytes"]
    common: dict[str, Any] = {
        "case": f"one rank, {num_bytes / 1e6:.0f} MB",
        "verified": answer["verified"],
        "samples": samples,
        "details": {key: value for key, value in answer.items() if isinstance(value, list)},
    }
    stall, spread = median_and_spread(answer["stall_s"])
    copy, torch_save = statistics.median(answer["copy_s"]), statistics.median(answer["torch_save_s"])
    yield Line(
        **common,
        metric="stall_s",
        unit="s",
        better="lower",
        ours=stall,
        spread=spread,
        peers={
            "torch.save": torch_save,
            "torch.save, synced": statistics.median(answer["torch_save_synced_s"]),
            "torch async_save": statistics.median(answer["async_stall_s"]),
        },
        bound=copy,
        bound_note="one copy of the bytes in memory",
        goal=f"<= {STALL_GOAL:g} of the bound and {SAVE_GOAL:g} times less than torch.save",
        met=stall <= STALL_GOAL * copy and torch_save >= SAVE_GOAL * stall,
    )
    staged, spread = median_and_spread(answer["staged_stall_s"])
    yield Line(
        **common,
        metric="stall_s, copied later",
        unit="s",
        better="lower",
        ours=staged,
        spread=spread,
        peers={
            "torch.save": torch_save,
            "torch async_save": statistics.median(answer["async_stall_s"]),
            "torch async_save, staged asynchronously": statistics.median(answer["async_staged_stall_s"]),
        },
        bound=copy,
        bound_note="one copy of the bytes in memory",
        goal=f"<= {STAGED_GOAL:g} of the bound and {SAVE_GOAL:g} times less than torch.save",
        met=staged <= STAGED_GOAL * copy and torch_save >= SAVE_GOAL * staged,
    )
    beside, spread = median_and_spread(answer["pass_beside_copy_s"])
    yield Line(
        **common,
        metric="forward_backward_s beside the copy",
        unit="s",
        better="lower",
        ours=beside,
        spread=spread,
        peers={"without a copy": statistics.median(answer["pass_s"])},
    )
    whole, spread = median_and_spread(answer["whole_s"])
    plain = num_bytes / statistics.median(answer["write_s"])
    yield Line(
        **common,
        metric="saved_bytes_per_s",
        unit="bytes/s",
        better="higher",
        ours=num_bytes / whole,
        spread=spread,
        peers={"torch async_save": num_bytes / statistics.median(answer["async_whole_s"])},
        bound=plain,
        bound_note="a plain write and fsync of the same bytes",
        goal=f">= {RATE_GOAL:g} of the bound",
        met=num_bytes / whole >= RATE_GOAL * plain,
    )
    if rates:
        yield Line(
            **common,
            metric="saved_bytes_per_s beside fio",
            unit="bytes/s",
            better="higher",
            ours=num_bytes / whole,
            peers=rates,
        )
    pause, spread = median_and_spread(answer["busy_pause_s"])
    yield Line(
        **common,
        metric="pause_s",
        unit="s",
        better="lower",
        ours=pause,
        spread=spread,
        peers={"the same loop without a writer": statistics.median(answer["quiet_pause_s"])},
        goal=f"<= {PAUSE_GOAL_S:g} s",
        met=pause <= PAUSE_GOAL_S,
    )


def _reshard_lines(size: int, answers: list[dict[str, Any]]) -> Iterator[Line]:
    verified, num_bytes = all(answer["verified"] for answer in answers), answers[0]["num_bytes"]
    for metric in ("restore_s", "whole_s"):
        if metric in answers[0]:
            took_s = max(answer[metric] for answer in answers)
            yield Line(
                case=f"{size} ranks of two hosts, {num_bytes / 1e6:.0f} MB",
                metric=metric,
                unit="s",
                better="lower",
                ours=took_s,
                verified=verified,
                details={"bytes_per_s": num_bytes / took_s},
            )


def _ranks(size: int, orders: dict[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="clary-checkpoint-store-") as folder:
        ranks = [
            subprocess.Popen(
                [
                    str(TRAIN_PYTHON),
                    *("-m", "benchmarks.training.checkpoint_rank"),
                    json.dumps({**orders, "rank": rank, "size": size, "store": f"{folder}/store"}),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
            )
            for rank in range(size)
        ]
        try:
            told = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"ranks ended with {[rank.returncode for rank in ranks]}; they say why above")
    return [json.loads(text.splitlines()[-1]) for text in told]


def _fio_rate(folder: Path, state_mib: int) -> float | None:
    """Return bytes a second that fio writes around the page cache; None where it is not installed."""
    if shutil.which("fio") is None:
        return None
    done = subprocess.run(
        ["fio", "--name=write", f"--directory={folder}", "--rw=write", f"--bs={FIO_BLOCK}", f"--size={state_mib}m",
         "--direct=1", "--end_fsync=1", "--output-format=json"],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    for path in folder.glob("write*"):
        path.unlink()
    return float(json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"])
