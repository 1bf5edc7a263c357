"""SIGKILL at any moment of a save, on either host or both: each restore is whole, and no whole step is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import time
from pathlib import Path

import pytest
from torch_ranks import ROOT, TRAIN_PYTHON

PROGRAM = Path(__file__).with_name("checkpoint_kills_program.py")
NUM_KILLS = 30
LIMIT_S = 270.0
TOLD = ("log-", "checkpoint.json", "failures")  # prefix of the names of files that record each event


def found_in(folder: Path) -> str:
    """Return the traces of ranks with times on the ranks' clock: files in folders, and the ranks' output."""
    since_s = time.time() - time.monotonic()
    lines = []
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            lines.append(f"{status.st_mtime - since_s:.4f} {status.st_size:>8} {path.relative_to(folder)}")
            if path.is_file() and path.name.startswith(TOLD):
                lines += [f"    {line}" for line in path.read_text().split("\n")]
    return "\n".join(lines)


@pytest.mark.timeout(300)
@pytest.mark.long
def test_no_kill_tears_a_step_or_loses_a_whole_one(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    folder, output, kills = tmp_path / "ranks", tmp_path / "output", tmp_path / "kills"
    folder.mkdir()
    code = None
    with output.open("w") as stdout, kills.open("w") as stderr, contextlib.suppress(subprocess.TimeoutExpired):
        code = subprocess.run(
            [str(TRAIN_PYTHON), str(PROGRAM), str(folder), str(NUM_KILLS), str(seed)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            stdout=stdout,
            stderr=stderr,
            timeout=LIMIT_S,
            check=False,
        ).returncode

    def scene() -> str:
        return f"seed {seed}, exit {code}\n{output.read_text()}\n{kills.read_text()}\n{found_in(folder)}"

    assert code is not None, f"no end in {LIMIT_S:g} s: {scene()}"
    assert code == 0, scene()
    told = json.loads(output.read_text().splitlines()[-1])
    assert told["failures"] == "", scene()
    assert told["words"], f"no rank outlived another: {scene()}"
    for words in told["words"]:
        assert re.search(r"rank [01]: step \d+ to \S+/host-[01] ", words), f"{words}\n{scene()}"
    restored = told["restored"]
    assert len(restored) == NUM_KILLS + 1, scene()
    assert restored[0] is None, scene()
    steps = [-1 if step is None else step for step in restored]
    assert steps == sorted(steps), scene()
    assert steps[-1] > NUM_KILLS, f"kills came before saves: {scene()}"
