"""SMP v1: results, sums, names and optimizers that scripts use besides training itself."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("smp_surface_program.py")


@pytest.mark.long(16)
@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-surface")
@pytest.mark.parametrize("name", names(PROGRAM))
def test_further_features_on_two_ranks(name: str) -> None:
    assert_passed(PROGRAM, name, 2, **VARIABLES)
