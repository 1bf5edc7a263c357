"""The debugger on GPUs, as far as a torch without a GPU can show it."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("debugger_gpu_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_debugger_on_gpus(name: str) -> None:
    assert_passed(PROGRAM, name)
