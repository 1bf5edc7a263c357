"""Uses of a hook by public scripts for smdebug."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("debugger_scripts_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_scripts(name: str) -> None:
    assert_passed(PROGRAM, name)
