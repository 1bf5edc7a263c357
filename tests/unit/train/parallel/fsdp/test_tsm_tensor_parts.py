"""Attention of `torch.sagemaker`, and cuts of parameters; both need torch and one process."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_tensor_parts_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_tsm_tensor(name: str) -> None:
    assert_passed(PROGRAM, name)
