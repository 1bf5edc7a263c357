"""Numbers of an optimizer's parameters, for scripts that keep float32 masters of parameters."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("numbering_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_numbering(name: str) -> None:
    assert_passed(PROGRAM, name)
