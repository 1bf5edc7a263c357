"""The hook of a job's DebugHookConfig: installed when torch is imported, and never what a program fails by."""

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


@pytest.fixture
def register(tmp_path):
    tree = MlTree(tmp_path / "ml")
    write_train_library(tree)

    def run(**variables):
        return subprocess.run(
            [sys.executable, "-c", PROGRAM],
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
def test_a_configuration_that_is_wrong_is_said_and_the_program_goes_on(register, tmp_path, text):
    file = tmp_path / "hook.json"
    file.write_text(text)
    done = register(SMDEBUG_CONFIG_FILE_PATH=str(file))
    assert "nothing will be saved, training goes on" in done.stderr
