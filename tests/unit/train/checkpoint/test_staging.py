"""Copies that are made while the next forward and backward pass run."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("checkpoint_staging_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_staging(name: str) -> None:
    assert_passed(PROGRAM, name)
