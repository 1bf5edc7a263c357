"""Checkpoints of SMP v1 in shared and separate folders, and with files missing, on two real ranks."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("smp_checkpoint_program.py")


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-checkpoint")
@pytest.mark.parametrize("name", names(PROGRAM))
def test_checkpoints_on_two_ranks(name: str) -> None:
    assert_passed(PROGRAM, name, 2, **VARIABLES)
