"""SMP v1 as scripts call it, on two real ranks: pipelines, replicas, checkpoints, half precision, failures."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("smp_core_program.py")


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-core")
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long(10)
def test_core_features_on_two_ranks(name: str) -> None:
    assert_passed(PROGRAM, name, 2, **VARIABLES)
