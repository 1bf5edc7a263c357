"""`torch.sagemaker`: experts and sequences spread by degrees of `tsm.init`, on 2 and 4 ranks."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_degrees_program.py")

pytestmark = pytest.mark.xdist_group("tsm-degrees")  # a program runs once a worker: all of it on one


@pytest.mark.timeout(200)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_degrees(name: str, size: int) -> None:
    assert_passed(PROGRAM, name, size, CLARY_TEST_BACKEND="gloo")
