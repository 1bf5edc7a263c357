"""Microbatches: splitting and merging."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("microbatches_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_microbatches(name: str) -> None:
    assert_passed(PROGRAM, name)
