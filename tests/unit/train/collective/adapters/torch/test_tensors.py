"""Tensors that the compiled core reads itself."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

from clary.train._native import core

PROGRAM = Path(__file__).with_name("tensors_program.py")
pytestmark = pytest.mark.skipif(core.door() is None, reason="_door was not built: no headers of Python, or no compiler")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_tensors(name: str) -> None:
    assert_passed(PROGRAM, name)
