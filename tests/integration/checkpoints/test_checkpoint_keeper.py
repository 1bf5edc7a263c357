"""`clary.train.checkpoint` on 4 ranks of two hosts: kept steps, errors, and survival of losses."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("checkpoint_keeper_program.py")

pytestmark = pytest.mark.xdist_group("checkpoint-keeper")  # a program runs once per worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keeper")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_functions_of_the_keeper_pass(name: str, folder: Path) -> None:
    assert_passed(PROGRAM, name, 4, CLARY_TEST_BACKEND="gloo", CLARY_TEST_FOLDER=str(folder))
