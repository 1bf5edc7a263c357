"""Delayed initialisation of `torch.sagemaker`, with and without tied weights; it needs torch and one process."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("delayed_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_delayed_initialisation(name: str) -> None:
    assert_passed(PROGRAM, name)
