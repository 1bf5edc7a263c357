"""Choice of the save to restore, and of its sources."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("checkpoint_choice_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_choice(name: str) -> None:
    assert_passed(PROGRAM, name)
