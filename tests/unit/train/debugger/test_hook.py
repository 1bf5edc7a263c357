"""The hook in small trainings."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("debugger_hook_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_hook(name: str) -> None:
    assert_passed(PROGRAM, name)
