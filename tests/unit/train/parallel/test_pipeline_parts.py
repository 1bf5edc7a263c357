"""Parts of the module server that need torch: what travels, over which streams, whose turn it is, where modules lie."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("pipeline_parts_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_parts(name: str) -> None:
    assert_passed(PROGRAM, name)
