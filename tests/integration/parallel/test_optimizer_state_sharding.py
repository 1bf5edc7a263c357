"""Sharded optimizer state over gloo, on 2 and 4 ranks."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("optimizer_state_sharding_program.py")
NEED_FOUR = {"test_parameters_of_different_groups_of_ranks"}
CASES = [(name, size) for size in (2, 4) for name in names(PROGRAM) if size == 4 or name not in NEED_FOUR]

pytestmark = pytest.mark.xdist_group("optimizer-state-sharding")  # a program runs once per worker


@pytest.mark.timeout(200)
@pytest.mark.sweep("size")
@pytest.mark.parametrize(("name", "size"), CASES)
@pytest.mark.long
def test_functions_of_state_sharding_pass_on_ranks(name: str, size: int) -> None:
    assert_passed(PROGRAM, name, size, CLARY_TEST_BACKEND="gloo")
