"""Parts of context parallelism that need torch and one process."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_context_parts_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_context_in_one_process(name: str) -> None:
    assert_passed(PROGRAM, name)
