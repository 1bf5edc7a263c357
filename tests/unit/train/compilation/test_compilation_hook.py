"""The hook around models, with real graphs of torch.compile."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("compilation_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_models(name: str) -> None:
    assert_passed(PROGRAM, name)
