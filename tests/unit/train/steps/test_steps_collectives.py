"""The record of collectives in ranks of gloo."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("steps_collectives_program.py")


@pytest.mark.timeout(220)  # a busy machine needs this long for the program; the first test waits for all of it
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_collectives(name: str) -> None:
    assert_passed(PROGRAM, name)
