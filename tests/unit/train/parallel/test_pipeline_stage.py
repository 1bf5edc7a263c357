"""A stage and the halves of its backward pass."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("pipeline_stage_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_stage(name: str) -> None:
    assert_passed(PROGRAM, name)
