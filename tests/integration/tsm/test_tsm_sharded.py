"""`torch.sagemaker`: sharded states of models cut by degrees, saved and loaded as scripts do, over gloo."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_sharded_program.py")
REPLICAS = Path(__file__).with_name("tsm_replicas_program.py")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-sharded")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_sharded_states(name: str) -> None:
    assert_passed(PROGRAM, name, 4, CLARY_TEST_BACKEND="gloo", CLARY_TEST_FAMILIES="own")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(REPLICAS))
@pytest.mark.long(33)
def test_sharded_states_of_replicas(name: str) -> None:
    assert_passed(REPLICAS, name, 4, CLARY_TEST_BACKEND="gloo", CLARY_TEST_FAMILIES="own")
