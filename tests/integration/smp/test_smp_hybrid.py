"""SMP v1 on four real ranks: pipelines and replicas together."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("smp_hybrid_program.py")


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-hybrid")
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_pipelines_and_replicas_on_four_ranks(name: str) -> None:
    assert_passed(PROGRAM, name, 4, **VARIABLES)
