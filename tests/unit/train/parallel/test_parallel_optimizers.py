"""LAMB and NovoGrad under apex's arguments."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("optimizers_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_optimizers(name: str) -> None:
    assert_passed(PROGRAM, name)
