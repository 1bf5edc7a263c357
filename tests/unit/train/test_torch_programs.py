"""Functions that need another interpreter: their runs, and the cleanup after their process."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, outcomes

PROGRAM = """
import os
from pathlib import Path

def test_keeps_a_file():
    (Path(os.environ["PROGRAM_FOLDER"]) / "kept").touch()

def test_finds_it_again():
    folder = Path(os.environ["PROGRAM_FOLDER"])
    raise AssertionError(f"said {folder} {(folder / 'kept').exists()}")
"""


def test_functions_of_a_program_share_a_folder_that_is_removed_after_an_abrupt_exit(tmp_path: Path) -> None:
    program = tmp_path / "a_program.py"
    program.write_text(PROGRAM)
    assert_passed(program, "test_keeps_a_file")
    with pytest.raises(AssertionError, match="test_finds_it_again"):
        assert_passed(program, "test_finds_it_again")
    said = outcomes(program)["test_finds_it_again"]
    assert said is not None
    place, was_kept = said.split()[-2:]
    assert was_kept == "True"
    assert Path(place).name.startswith("clary-program-")
    assert not Path(place).exists()
