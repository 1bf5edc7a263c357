"""Pipelines of every schedule compared with the same model in one process."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("pipeline_schedules_program.py")

pytestmark = pytest.mark.xdist_group("pipeline-schedules-run")  # a program runs once per worker


@pytest.mark.timeout(200)
@pytest.mark.sweep("size")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long(10)
def test_pipelines_over_gloo(name: str, size: int) -> None:
    assert_passed(PROGRAM, name, size, CLARY_TEST_BACKEND="gloo", GLOO_SOCKET_IFNAME="lo")


@pytest.mark.long(9)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
def test_pipelines_over_smddp(name: str) -> None:
    assert_passed(PROGRAM, name, 2)
