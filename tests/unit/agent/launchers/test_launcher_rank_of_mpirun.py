"""Ranks of mpirun have the variables that torch reads, like ranks that Clary starts itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import clary

SHIM = Path(clary.__file__).parent / "agent/launchers/shims/clary_rank.py"
OF_MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
PROGRAM = f"import json, os; print(json.dumps({{name: os.environ.get(name) for name in {NAMES}}}))"


@pytest.fixture
def variables_of(tmp_path):
    """Run a program below the shim; return the values that it finds for NAMES."""
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(**variables):
        done = subprocess.run(
            [sys.executable, str(SHIM), "train.py"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], **variables},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return json.loads(done.stdout)

    return run


def test_a_rank_of_mpirun_has_the_variables_of_torch(variables_of):
    found = variables_of(**OF_MPIRUN)
    assert found == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def test_variables_that_a_launcher_or_the_user_has_set_stay(variables_of):
    found = variables_of(**OF_MPIRUN, RANK="0", WORLD_SIZE="1")
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == ("0", "1", None)


def test_a_process_that_mpirun_has_not_started_has_no_variables_of_torch(variables_of):
    assert set(variables_of().values()) == {None}
    assert set(variables_of(OMPI_COMM_WORLD_RANK="5").values()) == {None}
