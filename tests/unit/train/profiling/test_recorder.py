"""Windows of torch.profiler begin and end at steps, and never block a program."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).parent / "profiling_program.py"


@pytest.mark.timeout(220)  # a busy machine needs this long for the program; the first test waits for all of it
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_profiling_program(name):
    assert_passed(PROGRAM, name)
