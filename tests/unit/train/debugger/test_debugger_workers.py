"""Trials and hooks of several workers."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("debugger_workers_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_workers(name: str) -> None:
    assert_passed(PROGRAM, name)
