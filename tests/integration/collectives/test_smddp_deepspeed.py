"""DeepSpeed's ZeRO stages over `dist_backend="smddp"`, compared with gloo."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from collective_groups import ROOT

from needs import python_of

PYTHON = python_of("deepspeed")
PROGRAM = ROOT / "tests/integration/collectives/deepspeed_program.py"
NUM_RANKS = 2
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.needs("deepspeed"),
]


@pytest.fixture(autouse=True)
def _no_buffers_of_deepspeed():
    yield
    for buffer in Path("/dev/shm").glob("deepspeed_allreduce_buffer_*"):  # left behind by DeepSpeed's extension
        buffer.unlink()


def train(backend, stage, folder):
    """Train; return the result that each rank wrote."""
    folder.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'src/clary/compat'}",
        "DS_ACCELERATOR": "cpu",
        "LOCAL_SIZE": str(NUM_RANKS),
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(PYTHON.parents[1] / "extensions"),
    }
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_RANKS}"]
    ran = subprocess.run(
        [str(PYTHON), *launcher, str(PROGRAM), backend, str(stage), str(folder)],
        env=environment,
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.long
def test_a_zero_stage_trains_bit_by_bit_the_same_as_over_gloo(stage, tmp_path):
    ours, theirs = (train(backend, stage, tmp_path / backend) for backend in ("smddp", "gloo"))
    assert [rank["backend"] for rank in ours] == ["smddp"] * NUM_RANKS
    assert [rank["losses"] for rank in ours] == [rank["losses"] for rank in theirs]
    assert {rank["weights"] for rank in (*ours, *theirs)} == {ours[0]["weights"]}
    assert all(rank["losses"][-1] < rank["losses"][0] for rank in ours)
