"""`torch.sagemaker`: distributed checkpoints over gloo on 4 ranks."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

CHECKPOINT = Path(__file__).with_name("tsm_checkpoint_program.py")
STATES = Path(__file__).with_name("tsm_states_program.py")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-checkpoint")


@pytest.mark.long(19)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(CHECKPOINT))
def test_distributed_checkpoints(name: str) -> None:
    assert_passed(CHECKPOINT, name, 4, CLARY_TEST_BACKEND="gloo")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(STATES))
@pytest.mark.long
def test_local_and_sharded_states(name: str) -> None:
    assert_passed(STATES, name, 4, CLARY_TEST_BACKEND="gloo")
