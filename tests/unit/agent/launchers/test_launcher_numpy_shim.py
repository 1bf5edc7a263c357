"""The shim of NumPy: removed names of older versions have their old meaning, and unknown names fail as before."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from clary.agent.launchers.shim_files import RANK_SHIM
from clary.agent.launchers.shims import clary_numpy
from needs import VENVS

# A fake numpy 2.4: present names, and a `__getattr__` for removed names.
NUMPY = """
from math import inf
__version__ = "2.4.6"
float64, prod = "float64", "prod"
asked = []

def __getattr__(name):
    asked.append(name)
    if name == "lazy":
        return "here"
    raise AttributeError(f"numpy has no {name}")
"""
PYTHON = VENVS / "train/bin/python"


def run(folder: Path, program: str, python: str = sys.executable, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [python, RANK_SHIM, str(folder / "program.py")],
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def fake_numpy(folder: Path) -> None:
    (folder / "numpy").mkdir()
    (folder / "numpy/__init__.py").write_text(NUMPY)


def test_a_program_gets_the_old_meaning_of_removed_names(tmp_path: Path) -> None:
    fake_numpy(tmp_path)
    program = (
        "import numpy\n"
        "from numpy import int as whole\n"
        "print(whole, numpy.float, numpy.object, numpy.Inf, numpy.NINF, numpy.float_, numpy.product, numpy.lazy)\n"
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "<class 'int'> <class 'float'> <class 'object'> inf -inf float64 prod here\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("clary: NumPy 2.4.6 has no numpy.int; this program gets <class 'int'> for it")


@pytest.mark.parametrize("name", ["string_", "unknown", "long"])
def test_a_name_without_a_meaning_fails_in_numpys_own_words(tmp_path: Path, name: str) -> None:
    """The fake has no bytes_, which string_ was an alias of."""
    fake_numpy(tmp_path)
    done = run(tmp_path, f"import numpy\nprint(hasattr(numpy, {name!r}))\nnumpy.{name}\n")
    assert (done.returncode, done.stdout) == (1, "False\n")
    assert done.stderr.endswith(f"AttributeError: numpy has no {name}\n")
    assert "clary:" not in done.stderr


def test_other_ranks_and_child_processes_print_no_message(tmp_path: Path) -> None:
    fake_numpy(tmp_path)
    assert run(tmp_path, "import numpy\nnumpy.int\n", RANK="1").stderr == ""
    program = f"import numpy, subprocess, sys\nnumpy.int\nsubprocess.run([sys.executable, {RANK_SHIM!r}, 'child.py'])\n"
    (tmp_path / "child.py").write_text("import numpy\nprint(numpy.int)\n")
    done = subprocess.run(
        [sys.executable, RANK_SHIM, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=not (tmp_path / "program.py").write_text(program),
        timeout=60,
    )
    assert (done.stdout, done.stderr.count("clary:")) == ("<class 'int'>\n", 1)


def test_a_numpy_without_a_function_for_missing_names_stays_as_it_is() -> None:
    old = types.ModuleType("numpy")
    clary_numpy.register(old)
    assert not hasattr(old, "__getattr__")


def test_a_second_registration_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLARY_TOLD_NUMPY", "1")
    module = types.ModuleType("numpy")
    exec(NUMPY, module.__dict__)
    clary_numpy.register(module)
    first = vars(module)["__getattr__"]
    clary_numpy.register(module)
    assert vars(module)["__getattr__"] is first
    assert (module.int, module.asked) == (int, ["int"])


@pytest.mark.needs("train")
def test_the_installed_numpy_has_all_targets_of_removed_names(tmp_path: Path) -> None:
    program = (
        "import sys, numpy\n"
        "shim = sys.modules['clary_numpy']\n"
        "assert not vars(numpy).keys() & {'int', 'Inf'}, numpy.__version__\n"
        "print(numpy.zeros(2, numpy.int).dtype, numpy.array([1.5]).astype(numpy.float_).dtype)\n"
        "print(numpy.product([2, 3]), numpy.alltrue([1, 0]), numpy.trapz([0.0, 2.0]), numpy.mat([[1]]).shape)\n"
        "assert all(getattr(numpy, name) is not None for name in (*shim._MEANINGS, *shim._SUCCESSORS))\n"
    )
    done = run(tmp_path, program, python=str(PYTHON))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "int64 float64\n6 False 1.0 (1, 1)\n"


@pytest.mark.needs("train")
def test_importing_torch_uses_no_removed_name(tmp_path: Path) -> None:
    """A library that probes for removed names must not print the message in a program without them."""
    done = run(tmp_path, "import torch, torch.utils.data, torch.distributed\n", python=str(PYTHON))
    assert (done.returncode, done.stderr) == (0, "")
