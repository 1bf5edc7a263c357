"""SyncBatchNorm under CUDA on the CPU: two ranks train as one process does with the whole batch."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("sync_batch_norm_program.py")
LIMIT_S = 120

pytestmark = [pytest.mark.timeout(LIMIT_S + 30), pytest.mark.needs("train")]


def test_two_ranks_train_as_one_process_with_the_whole_batch():
    done = subprocess.run(
        [str(ROOT / ".venvs/train/bin/python"), str(PROGRAM)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src/clary/compat"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for told in json.loads(done.stdout.splitlines()[-1]):
        assert [one["far"] < 2e-5 for one in told["found"]] == [True] * 3, told
        assert {one["dtype"] for one in told["found"]} == {"torch.bfloat16"}
        assert [one["tracked"] for one in told["found"]] == [3, 3, 3]
        assert told["alone"] == pytest.approx(1.0, abs=1e-3)
        assert "2D input" in told["refused"]
