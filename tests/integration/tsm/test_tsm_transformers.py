"""Parts of `torch.sagemaker` with the models of several versions of transformers, in one process."""

import functools
import json
import os
import subprocess
from pathlib import Path

import pytest
from torch_ranks import ROOT, names

from needs import python_of

FOLDER = Path(__file__).parent
PROGRAMS = (FOLDER / "llama_attention_program.py", FOLDER / "delayed_rotary_program.py")
UNIT_RUNNER = ROOT / "tests/helpers/torch_programs.py"
VERSIONS = ("transformers-4.37", "transformers-4.46", "hf")
LIMIT_S = 200  # importing transformers takes seconds, and a minute on a busy machine
CASES = [(program, name) for program in PROGRAMS for name in names(program)]

# a program runs once in each worker: run all its functions in one worker
pytestmark = [pytest.mark.timeout(LIMIT_S), pytest.mark.xdist_group("tsm-transformers"), pytest.mark.long(12)]


@functools.cache
def outcomes(program: Path, version: str) -> dict[str, str | None]:
    done = subprocess.run(
        [python_of(version), UNIT_RUNNER, program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S - 10,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("program", "name"), CASES, ids=[name for _, name in CASES])
@pytest.mark.sweep("version")
@pytest.mark.parametrize("version", [pytest.param(one, marks=pytest.mark.needs(one)) for one in VERSIONS])
def test_models_of_transformers(version: str, program: Path, name: str) -> None:
    failure = outcomes(program, version)[name]
    assert failure is None, failure
