"""SIGKILL at any action of a pipeline ends the other rank with a message that names stage, microbatch and action."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import outcomes

PROGRAM = Path(__file__).with_name("smp_kill_program.py")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("which", ["forward", "backward"])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.long
def test_the_surviving_rank_reports_its_work(victim: int, which: str, number: int) -> None:
    told = outcomes(PROGRAM, 2, 60, **VARIABLES, CLARY_TEST_KILL=f"{victim} {which} {number}")
    (failures,) = told.values()
    assert "ended with -9" in str(failures[victim]), failures[victim]
    assert failures[1 - victim] is None, failures[1 - victim]
