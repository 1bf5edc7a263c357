"""`torch.sagemaker`: mistakes of scripts that once silently trained another model now raise errors, over gloo."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("tsm_silent_program.py")


@pytest.mark.long(14)
@pytest.mark.timeout(200)
@pytest.mark.xdist_group("tsm-silent")  # a program runs once in each worker: run all its functions in one worker
@pytest.mark.parametrize("name", names(PROGRAM))
def test_mistakes_on_two_ranks(name: str) -> None:
    assert_passed(PROGRAM, name, 2, CLARY_TEST_BACKEND="gloo", CLARY_TEST_FAMILIES="own")


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("tsm-silent-4")
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_mistakes_on_four_ranks(name: str) -> None:
    assert_passed(PROGRAM, name, 4, CLARY_TEST_BACKEND="gloo", CLARY_TEST_FAMILIES="own")
