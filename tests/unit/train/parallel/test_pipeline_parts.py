"""Parts of the module server that need torch: messages, their streams, turns, and the ranks of modules."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("pipeline_parts_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_parts(name: str) -> None:
    assert_passed(PROGRAM, name)
