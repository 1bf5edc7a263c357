"""A rank waits until the store of rank 0 listens."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("store_opening_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_store_opening(name: str) -> None:
    assert_passed(PROGRAM, name)
