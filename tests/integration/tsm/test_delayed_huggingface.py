"""Delayed initialisation and checkpointing of transformers' own models give the same bits as without them."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from torch_ranks import ROOT, names

from needs import python_of

PROGRAM = Path(__file__).with_name("delayed_huggingface_program.py")
UNIT_RUNNER = ROOT / "tests/helpers/torch_programs.py"
HF_PYTHON = python_of("hf")
LIMIT_S = 200  # importing transformers takes seconds, and a minute on a busy machine

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(LIMIT_S),
    pytest.mark.needs("hf"),
]


@pytest.fixture(scope="module")
def outcomes():
    done = subprocess.run(
        [HF_PYTHON, UNIT_RUNNER, PROGRAM],
        capture_output=True,
        text=True,
        timeout=LIMIT_S - 10,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", names(PROGRAM))
def test_delayed_models_of_transformers(name, outcomes):
    assert outcomes[name] is None, outcomes[name]
