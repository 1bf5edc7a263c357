"""The program of units of sharded data parallelism, with the interpreter of training programs."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("sharded_units_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_units(name: str) -> None:
    assert_passed(PROGRAM, name)
