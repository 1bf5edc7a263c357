"""`torch.sagemaker` keeps tied weights tied on all ranks, over gloo on 4 ranks."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_ties_program.py")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-ties")


@pytest.mark.long(25)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
def test_tied_weights(name: str) -> None:
    assert_passed(PROGRAM, name, 4, CLARY_TEST_BACKEND="gloo")
