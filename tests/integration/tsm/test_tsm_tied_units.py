"""`torch.sagemaker` refuses tied weights that lie in different units of FSDP, over gloo on 2 ranks."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_tied_units_program.py")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-tied-units")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
def test_tied_units(name: str) -> None:
    assert_passed(PROGRAM, name, 2, CLARY_TEST_BACKEND="gloo")
