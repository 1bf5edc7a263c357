"""Models of transformers in pipelines of SMP v1, on two real ranks."""

from pathlib import Path

import pytest
from test_smp_core import VARIABLES
from torch_ranks import ROOT, assert_passed, names

PROGRAM = Path(__file__).with_name("smp_huggingface_program.py")
PYTHON = ROOT / ".venvs/hf/bin/python"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no transformers: make .venvs/hf.stamp")


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-huggingface")
@pytest.mark.parametrize("name", names(PROGRAM))
def test_in_pipelines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_ranks.TRAIN_PYTHON", PYTHON)
    assert_passed(PROGRAM, name, 2, **VARIABLES)
