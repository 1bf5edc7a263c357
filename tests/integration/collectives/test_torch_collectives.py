"""Collectives of backend smddp on one, two and three ranks, with the compiled core and with the reference core."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("torch_collectives_program.py")

pytestmark = pytest.mark.xdist_group("torch-collectives")  # a program runs once per worker


@pytest.mark.timeout(200)
@pytest.mark.sweep("size")
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", names(PROGRAM))
def test_collectives_of_the_compiled_core(name: str, size: int) -> None:
    assert_passed(PROGRAM, name, size, CLARY_COLLECTIVE_CORE="native")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_collectives_of_the_reference_core(name: str) -> None:
    assert_passed(PROGRAM, name, 2, CLARY_COLLECTIVE_CORE="reference")
