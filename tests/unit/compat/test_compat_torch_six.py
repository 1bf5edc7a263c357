"""Names of torch 1, for scripts that import them from a later torch."""

import os
import subprocess
import sys

import pytest

from clary.agent.environments.train_library import library_folder, write_train_library
from clary.contract.ml_tree import MlTree


@pytest.fixture
def run(tmp_path):
    """Run a program whose torch calls our hook at the end of its import, as torch does."""
    tree = MlTree(tmp_path / "ml")
    write_train_library(tree)
    torch = tmp_path / "site" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("import clary_autoload\nclary_autoload.register()\n")
    path = os.pathsep.join([str(tmp_path / "site"), str(library_folder(tree))])

    def run_program(words, **variables):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, **variables}
        return subprocess.run(
            [sys.executable, "-c", words], env=environment, capture_output=True, text=True, timeout=60, check=True
        )

    run_program.torch = torch
    return run_program


def test_names_of_torch_1_are_there_and_one_rank_says_so(run):
    words = (
        "from torch._six import inf, nan, string_classes, int_classes, container_abcs\n"
        "print(inf > 1e308, nan != nan, isinstance('a', string_classes), isinstance([], container_abcs.Sequence))"
    )
    done = run(words)
    assert done.stdout == "True True True True\n"
    assert done.stderr.startswith("clary: torch 2.0 removed torch._six")
    assert done.stderr.count("\n") == 1
    assert run(words, RANK="1").stderr == ""


def test_a_torch_that_has_the_names_keeps_its_own(run):
    (run.torch / "_six.py").write_text("inf = 'its own'\n")
    done = run("from torch._six import inf; print(inf)")
    assert done.stdout == "its own\n"
    assert done.stderr == ""


def test_other_names_of_torch_stay_missing(run):
    assert run("import importlib.util, torch; print(importlib.util.find_spec('torch._seven'))").stdout == "None\n"
