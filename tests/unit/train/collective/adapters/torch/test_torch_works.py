"""Works and futures of the torch adapter."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("works_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_works(name: str) -> None:
    assert_passed(PROGRAM, name)
