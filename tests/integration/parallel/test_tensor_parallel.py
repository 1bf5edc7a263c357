"""Tensor-parallel layers compared with the same unsharded layers."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("tensor_parallel_program.py")
EDGES = Path(__file__).with_name("tensor_edges_program.py")
REPLACEMENT = Path(__file__).with_name("tensor_replacement_program.py")

pytestmark = pytest.mark.xdist_group("tensor-parallel")  # a program runs once per worker


@pytest.mark.timeout(200)
@pytest.mark.sweep("size")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long(20)
def test_tensor_parallel(name: str, size: int) -> None:
    assert_passed(PROGRAM, name, size, CLARY_TEST_BACKEND="gloo")


@pytest.mark.timeout(200)
@pytest.mark.sweep("size")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", names(EDGES))
def test_tensor_edges(name: str, size: int) -> None:
    assert_passed(EDGES, name, size, CLARY_TEST_BACKEND="gloo")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(REPLACEMENT))
def test_tensor_replacement(name: str) -> None:
    assert_passed(REPLACEMENT, name, 2, CLARY_TEST_BACKEND="gloo")
