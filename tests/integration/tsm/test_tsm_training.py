"""`torch.sagemaker`: FSDP by degrees, over gloo on 4 ranks."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

TRAINING = Path(__file__).with_name("tsm_training_program.py")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-training")


@pytest.mark.long(25)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(TRAINING))
def test_fsdp_by_degrees(name: str) -> None:
    assert_passed(TRAINING, name, 4, CLARY_TEST_BACKEND="gloo")
