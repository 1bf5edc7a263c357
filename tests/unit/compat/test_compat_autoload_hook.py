"""The hook of `import torch` applies a job's DebugHookConfig without failing programs, and handles ranks of mpirun."""

import os
import subprocess
import sys

import pytest

from clary.agent.environments.train_library import library_folder, write_train_library
from clary.contract.ml_tree import MlTree

PROGRAM = """
import sys
import clary_autoload
clary_autoload.register()
print("debugger" if "clary.train.debugger" in sys.modules else "nothing")
"""

MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SAYS_RANKS = f"import os, clary_autoload; clary_autoload.register(); print([os.environ.get(name) for name in {RANKS}])"


@pytest.fixture
def register(tmp_path):
    tree = MlTree(tmp_path / "ml")
    write_train_library(tree)

    def run(program=PROGRAM, **variables):
        return subprocess.run(
            [sys.executable, "-c", program],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(library_folder(tree)), **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

    return run


def test_without_a_configuration_nothing_of_the_debugger_is_imported(register):
    done = register()
    assert done.stdout == "nothing\n"
    assert done.stderr == ""


def test_a_configuration_is_read(register, tmp_path):
    file = tmp_path / "hook.json"
    file.write_text('{"LocalPath": "%s"}' % (tmp_path / "tensors"))
    done = register(SMDEBUG_CONFIG_FILE_PATH=str(file))
    assert done.stdout == "debugger\n"
    assert done.stderr == ""


@pytest.mark.parametrize("text", ["{", '{"HookParameters": {"reductions": "median"}}'])
def test_an_invalid_configuration_is_reported_and_the_program_continues(register, tmp_path, text):
    file = tmp_path / "hook.json"
    file.write_text(text)
    done = register(SMDEBUG_CONFIG_FILE_PATH=str(file))
    assert "nothing will be saved, training goes on" in done.stderr


def test_ranks_of_mpirun_get_the_variables_of_jobs(register):
    done = register(SAYS_RANKS, CLARY_RUN_MASTER_PORT="4711", **MPI)
    assert done.stdout == "['1', '2', '1', '2', '127.0.0.1', '4711']\n"


@pytest.mark.parametrize(
    "variables",
    [
        MPI,  # a job whose user starts mpirun
        {"CLARY_RUN_MASTER_PORT": "4711"},
    ],
)
def test_other_programs_get_no_variables(register, variables):
    assert register(SAYS_RANKS, **variables).stdout == "[None, None, None, None, None, None]\n"


def test_variables_that_a_launcher_has_set_stay(register):
    done = register(SAYS_RANKS, CLARY_RUN_MASTER_PORT="4711", RANK="0", WORLD_SIZE="1", **MPI)
    assert done.stdout == "['0', '1', None, None, None, None]\n"
