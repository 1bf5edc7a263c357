"""Unusual but valid scripts for SMP v1: each of them once failed."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("smp_edges_program.py")


@pytest.mark.long(10)
@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-edges")
@pytest.mark.parametrize("name", names(PROGRAM))
def test_unusual_scripts_on_two_ranks(name: str) -> None:
    assert_passed(PROGRAM, name, 2, **VARIABLES)
