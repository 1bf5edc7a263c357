"""One model with both APIs of tensor-parallel layers, compared with the unsharded model."""

from pathlib import Path

import pytest
import torch_ranks
from torch_ranks import assert_passed, names

from needs import python_of

PROGRAM = Path(__file__).with_name("cut_layers_program.py")

pytestmark = pytest.mark.xdist_group("cut-layers")  # a program runs once per worker


@pytest.mark.needs("hf")
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
def test_cut_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "TRAIN_PYTHON", python_of("hf"))
    assert_passed(PROGRAM, name, 2, CLARY_TEST_BACKEND="gloo")
