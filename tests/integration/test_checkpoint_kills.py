"""SIGKILL at any moment of a save, on either host or both: what is restored is whole, and no whole step is lost."""

import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest
from torch_ranks import ROOT, TRAIN_PYTHON

PROGRAM = Path(__file__).with_name("checkpoint_kills_program.py")
NUM_KILLS = 30


@pytest.mark.timeout(200)
def test_no_kill_tears_a_step_or_loses_one_that_was_whole(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    done = subprocess.run(
        [str(TRAIN_PYTHON), str(PROGRAM), str(tmp_path), str(NUM_KILLS), str(seed)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["failures"] == "", f"seed {seed}\n{told['failures']}"
    assert told["words"], f"seed {seed}: no rank outlived another"
    for words in told["words"]:
        assert re.search(r"rank [01]: step \d+ to \S+/host-[01] ", words), f"seed {seed}\n{words}"
    restored = told["restored"]
    assert len(restored) == NUM_KILLS + 1, f"seed {seed}: {restored}"
    assert restored[0] is None, f"seed {seed}: {restored}"
    steps = [-1 if step is None else step for step in restored]
    assert steps == sorted(steps), f"seed {seed}: {restored}"
    assert steps[-1] > NUM_KILLS, f"seed {seed}: kills came before saves, {restored}"
