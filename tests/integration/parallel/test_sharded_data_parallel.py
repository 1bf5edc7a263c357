"""Sharded data parallelism over gloo, on 2 and 4 ranks, compared with one process.

Groups of one host share memory through the compiled core (native) or keep gloo (reference).
"""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

TRAINING = Path(__file__).with_name("sharded_data_parallel_program.py")
GROUPS = Path(__file__).with_name("sharded_groups_program.py")
EDGES = Path(__file__).with_name("sharded_edges_program.py")
STATES = Path(__file__).with_name("sharded_states_program.py")
NEED_FOUR = {"test_with_two_hosts_parameters_are_gathered_in_two_stages"}
CASES = [
    *((TRAINING, name, size) for size in (2, 4) for name in names(TRAINING) if size == 4 or name not in NEED_FOUR),
    *((EDGES, name, 2) for name in names(EDGES)),
    *((STATES, name, size) for size in (2, 4) for name in names(STATES)),
]

pytestmark = pytest.mark.xdist_group("sharded-data-parallel")  # a program runs once per worker


@pytest.mark.timeout(200)
@pytest.mark.sweep("size", "core")
@pytest.mark.parametrize("core", ["native", "reference"])
@pytest.mark.parametrize(("program", "name", "size"), CASES, ids=[f"{name}-{size}" for _, name, size in CASES])
@pytest.mark.long
def test_sharded(program: Path, name: str, size: int, core: str) -> None:
    assert_passed(program, name, size, CLARY_TEST_BACKEND="gloo", CLARY_COLLECTIVE_CORE=core)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", [name for name in names(TRAINING) if name not in NEED_FOUR])
def test_sharded_over_smddp(name: str) -> None:
    assert_passed(TRAINING, name, 2, CLARY_TEST_BACKEND="smddp")


@pytest.mark.parametrize("core", ["native", "reference"])
@pytest.mark.parametrize("name", names(GROUPS))
def test_groups(name: str, core: str) -> None:
    assert_passed(GROUPS, name, 2, CLARY_TEST_BACKEND="gloo", CLARY_COLLECTIVE_CORE=core)
