"""transformers' models under `torch.sagemaker`, with sequences cut over ranks, where transformers is installed."""

from pathlib import Path

import pytest
import torch_ranks
from torch_ranks import assert_passed, names

from needs import python_of

PROGRAM = Path(__file__).with_name("tsm_context_huggingface_program.py")
PYTHON = python_of("hf")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-context-huggingface")


@pytest.mark.long(16)
@pytest.mark.needs("hf")
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
def test_context_of_huggingface(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "TRAIN_PYTHON", PYTHON)
    assert_passed(PROGRAM, name, 2, CLARY_TEST_BACKEND="gloo")
