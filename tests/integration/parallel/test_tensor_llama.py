"""Layers of transformers' Llama that a program replaces by distributed ones with `smp.tp_register`, on two ranks."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

from needs import python_of, require

PROGRAM = Path(__file__).with_name("tensor_llama_program.py")
ENVIRONMENTS = {"hf": "5.24", "transformers-4.46": "4.46"}  # environment -> version of transformers


@pytest.mark.long(60)
@pytest.mark.timeout(200)
@pytest.mark.xdist_group("tensor-llama")
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", names(PROGRAM))
def test_layers_are_replaced_by_those_that_the_program_registers(
    name: str, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(environment)
    monkeypatch.setattr("torch_ranks.TRAIN_PYTHON", python_of(environment))
    assert_passed(PROGRAM, name, 2, CLARY_TEST_TRANSFORMERS=ENVIRONMENTS[environment], **VARIABLES)
