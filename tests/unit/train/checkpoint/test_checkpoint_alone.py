"""A keeper in one process without a process group."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("checkpoint_alone_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long(10)
def test_alone(name: str) -> None:
    assert_passed(PROGRAM, name)
