"""Layers of transformers' Llama that a program names distributed versions for by `smp.tp_register`, on two ranks."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

from needs import python_of

PROGRAM = Path(__file__).with_name("tensor_llama_program.py")
PYTHON = python_of("hf")

pytestmark = pytest.mark.needs("hf")


@pytest.mark.long(30)
@pytest.mark.timeout(200)
@pytest.mark.xdist_group("tensor-llama")
@pytest.mark.parametrize("name", names(PROGRAM))
def test_layers_are_those_that_the_program_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_ranks.TRAIN_PYTHON", PYTHON)
    assert_passed(PROGRAM, name, 2, **VARIABLES)
