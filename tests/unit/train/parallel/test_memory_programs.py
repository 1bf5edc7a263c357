"""Checkpointing, offloading and delayed initialisation, on torch."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAMS = [
    Path(__file__).with_name(f"memory_{part}_program.py") for part in ("checkpointing", "offloading", "delayed")
]
CASES = [(program, name) for program in PROGRAMS for name in names(program)]


@pytest.mark.parametrize(("program", "name"), CASES, ids=[name for _, name in CASES])
@pytest.mark.long
def test_memory(program: Path, name: str) -> None:
    assert_passed(program, name)
