"""DDP, FSDP, meshes, pipelines and compiled models over backend smddp."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

TRAINING = Path(__file__).with_name("torch_training_program.py")
COMPILED = Path(__file__).with_name("torch_compiled_program.py")

pytestmark = pytest.mark.xdist_group("torch-training")  # a program runs once per worker


@pytest.mark.timeout(200)
@pytest.mark.sweep("size")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", names(TRAINING))
@pytest.mark.long(15)
def test_training_functions_pass(name: str, size: int) -> None:
    assert_passed(TRAINING, name, size)


@pytest.mark.long(10)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(TRAINING))
def test_training_on_several_hosts(name: str) -> None:
    assert_passed(TRAINING, name, 2, CLARY_COLLECTIVE_HOST="host-{rank}")


@pytest.mark.long(20)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(COMPILED))
def test_compiled_functions_pass(name: str) -> None:
    assert_passed(COMPILED, name, 2)
