"""`torch.sagemaker`: experts spread over 2 and 4 ranks, over smddp and gloo."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_experts_program.py")
EDGES = Path(__file__).with_name("tsm_experts_edges_program.py")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-experts")


@pytest.mark.timeout(200)
@pytest.mark.sweep("size", "backend")
@pytest.mark.parametrize(("size", "backend"), [(2, "smddp"), (4, "gloo")])
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long(30)
def test_experts_spread_over_ranks(name: str, size: int, backend: str) -> None:
    assert_passed(PROGRAM, name, size, CLARY_TEST_BACKEND=backend)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(EDGES))
@pytest.mark.long(10)
def test_policies_balancing_and_refusals_of_spread_experts(name: str) -> None:
    assert_passed(EDGES, name, 2, CLARY_TEST_BACKEND="gloo")
