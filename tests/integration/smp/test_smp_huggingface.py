"""Models of transformers in pipelines of SMP v1, on two real ranks."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

from needs import python_of

PROGRAM = Path(__file__).with_name("smp_huggingface_program.py")
PYTHON = python_of("hf")

pytestmark = pytest.mark.needs("hf")


@pytest.mark.long(25)
@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-huggingface")
@pytest.mark.parametrize("name", names(PROGRAM))
def test_models_of_transformers_in_pipelines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_ranks.TRAIN_PYTHON", PYTHON)
    assert_passed(PROGRAM, name, 2, **VARIABLES)
