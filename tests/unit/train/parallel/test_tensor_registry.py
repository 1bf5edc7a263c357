"""Marks and registrations of tensor parallelism, and translations of states."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("tensor_registry_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_tensor_registry(name: str) -> None:
    assert_passed(PROGRAM, name)
