"""How tensors of a pipeline are passed between ranks with GPUs."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("hand_over_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_hand_over(name: str) -> None:
    assert_passed(PROGRAM, name)
