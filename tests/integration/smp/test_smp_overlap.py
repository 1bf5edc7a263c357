"""SMP v1: averaging during backward passes, hooks, and replicas that skip a backward pass or have fewer batches."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("smp_overlap_program.py")
JOIN = Path(__file__).with_name("smp_join_program.py")


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-overlap")
@pytest.mark.sweep("size")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_averaging_during_backward_passes(name: str, size: int) -> None:
    assert_passed(PROGRAM, name, size, **VARIABLES)


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-overlap")
@pytest.mark.parametrize("name", names(JOIN))
def test_replicas_with_different_numbers_of_batches(name: str) -> None:
    assert_passed(JOIN, name, 2, **VARIABLES)
