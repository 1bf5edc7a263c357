"""Parts of `torch.sagemaker` that need torch and one process."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_tsm(name: str) -> None:
    assert_passed(PROGRAM, name)
