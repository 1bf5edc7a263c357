"""Built-in rules on trainings with problems, and on good trainings."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("debugger_rules_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_rules(name: str) -> None:
    assert_passed(PROGRAM, name)
