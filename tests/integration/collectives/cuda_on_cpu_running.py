"""Helper that runs scripts of `cuda_scripts` under `clary run --cuda-on-cpu`, with or without torchrun."""

import os
import subprocess
import sys
from pathlib import Path

from torch_ranks import ROOT, TRAIN_PYTHON

HERE = Path(__file__).parent
SCRIPTS = HERE / "cuda_scripts"
PROGRAM = HERE / "cuda_on_cpu_program.py"
UNIT_RUNNER = ROOT / "tests/helpers/torch_programs.py"
CLARY = (sys.executable, "-m", "clary.cli.main", "run")
NOTICE = "clary: CLARY_CUDA_ON_CPU=1: this process computes on the CPU"
LIMIT_S = 150  # importing torch takes seconds, and half a minute on a busy machine


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLARY_", "SM_"))}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **more}


def run(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLARY, *map(str, arguments)],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def torchrun(script: str, num_ranks: int) -> tuple[object, ...]:
    return (
        TRAIN_PYTHON,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc_per_node={num_ranks}",
        SCRIPTS / script,
    )
