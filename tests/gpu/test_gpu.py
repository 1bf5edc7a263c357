"""Tests that need one GPU; on machines without a GPU, some of them are rehearsed on the CPU.

`sh tools/check_gpu.sh` runs the same functions one by one on machines that have only torch installed.
"""

import shutil
from pathlib import Path

import pytest
from gpu_outcomes import failure_of, reason_of_absence
from torch_ranks import TRAIN_PYTHON, names

HERE = Path(__file__).parent
PROGRAMS = (
    ("gpu_ranks_program.py", 2),
    ("gpu_single_program.py", 1),
    ("gpu_hand_over_program.py", 2),
)
CASES = [(program, size, name) for program, size in PROGRAMS for name in names(HERE / program)]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(200),
    pytest.mark.xdist_group("gpu"),  # each program runs once per worker
    pytest.mark.skipif(not TRAIN_PYTHON.exists(), reason=f"no interpreter with torch at {TRAIN_PYTHON}"),
]


@pytest.mark.parametrize(("program", "size", "name"), CASES, ids=[f"{name}-{size}" for _, size, name in CASES])
@pytest.mark.long
def test_on_a_gpu(program, size, name, monkeypatch):
    if shutil.which("nvidia-smi") is None:
        monkeypatch.setenv("CLARY_CUDA_ON_CPU", "1")
    failure = failure_of(HERE / program, name, size)
    reason = reason_of_absence(failure or "")
    if reason is not None:
        pytest.skip(reason)
    assert failure is None, failure
