"""Checkpoints of 4 ranks restored on 2, saved there, restored on 3, bit by bit; two hosts without a common folder."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("checkpoint_reshard_program.py")

pytestmark = pytest.mark.xdist_group("checkpoint-reshard")  # a program runs once per worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("backend", ["smddp", "gloo"])
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long(45)
def test_any_number_of_ranks_restores_checkpoints_of_any_other_number(name: str, backend: str, folder: Path) -> None:
    place = folder / backend
    place.mkdir(exist_ok=True)
    common = {"CLARY_TEST_BACKEND": backend, "CLARY_TEST_FOLDER": str(place)}
    assert_passed(PROGRAM, name, 4, **common, CLARY_TEST_SAVE="1")
    assert_passed(PROGRAM, name, 2, **common, CLARY_TEST_RESTORE="1", CLARY_TEST_SAVE="2")
    assert_passed(PROGRAM, name, 3, **common, CLARY_TEST_RESTORE="2")
