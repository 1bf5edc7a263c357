"""The choice of a way for CUDA tensors, and staging."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("staging_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_staging(name: str) -> None:
    assert_passed(PROGRAM, name)
