"""`torch.sagemaker`: sequences cut over 2 and 4 ranks, over smddp and gloo."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_context_program.py")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-context")


@pytest.mark.timeout(200)
@pytest.mark.sweep("size", "backend")
@pytest.mark.parametrize(("size", "backend"), [(2, "smddp"), (4, "gloo")])
@pytest.mark.parametrize("name", names(PROGRAM))
def test_training_with_sequences_cut_over_ranks(name: str, size: int, backend: str) -> None:
    assert_passed(PROGRAM, name, size, CLARY_TEST_BACKEND=backend)
