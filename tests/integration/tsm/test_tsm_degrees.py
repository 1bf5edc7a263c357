"""`torch.sagemaker`: experts and sequences spread over 2 and 4 ranks by degrees of `tsm.init`."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_degrees_program.py")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-degrees")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long(43)
def test_experts_and_sequences_spread_by_degrees(name: str, size: int) -> None:
    assert_passed(PROGRAM, name, size, CLARY_TEST_BACKEND="gloo")
