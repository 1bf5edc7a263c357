"""The making of a group of the torch adapter."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("creation_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_creation(name: str) -> None:
    assert_passed(PROGRAM, name)
