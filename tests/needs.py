"""Programs and files that tests need besides the service's environment, and the skip or failure of a test without them.

A plugin that tests/conftest.py names. `@pytest.mark.needs("hf")` names what a test needs; `make test` installs all
needs. A test whose need is missing is skipped, with the command that installs it as the reason. In CI (the variable CI
is true) the test fails: a missing part must not pass as a working one.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from clary.testing.faults.fault_clock import find_compiler

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".venvs"


@dataclass(frozen=True)
class Need:
    """A program or a file, and the command that installs it."""

    path: str  # an absolute path, or the name of a program in PATH
    brought_by: str

    @property
    def is_met(self) -> bool:
        return shutil.which(self.path) is not None or Path(self.path).exists()


def _environment(name: str) -> Need:
    return Need(str(VENVS / name / "bin/python"), f"make .venvs/{name}.stamp")


def _system(path: str) -> Need:
    return Need(path, "make .venvs/system.stamp")


_ENVIRONMENTS = (
    "train",
    "sdk2",
    "sdk3",
    "toolkit",
    "hf",
    "trainer",
    "transformers-4.37",
    "transformers-4.46",
    "wandb",
    "deepspeed",
    "lightning",
    "composer",
    "trainer-4.46",
    "trainer-deepspeed",
    "jax",
    "mxnet",
    "tensorflow",
    "xgboost",
)

NEEDS = {
    **{name: _environment(name) for name in _ENVIRONMENTS},
    "minilm": Need(str(VENVS / "minilm"), "make .venvs/minilm.stamp"),
    "awscli1": Need(str(VENVS / "awscli1/bin/aws"), "make .venvs/awscli1.stamp"),
    "awscli2": _system("/usr/bin/aws"),
    "chromium": _system("/usr/bin/chromium"),
    "sshd": _system("/usr/sbin/sshd"),
    "mpirun": _system("mpirun"),
    "slurm": _system("/usr/sbin/slurmctld"),
    "zsh": _system("zsh"),
    "fish": _system("fish"),
    "tcsh": Need("tcsh", "apt-get install tcsh"),
    "gtest": _system("/usr/include/gtest/gtest.h"),
    "libaio": Need("/usr/include/libaio.h", "apt-get install libaio-dev"),
    "compiler": _system(find_compiler() or "cc"),
}


def python_of(environment: str) -> Path:
    """Return the path of the interpreter of an environment in NEEDS, whether it exists or not."""
    return Path(NEEDS[environment].path)


def require_python(path: Path) -> None:
    """Call `require` for the environment in NEEDS that has this interpreter, if any."""
    for name, need in NEEDS.items():
        if need.path == str(path):
            require(name)


def require(name: str) -> None:
    """Skip the running test if its need is missing; fail it in CI."""
    need = NEEDS[name]
    if need.is_met:
        return
    words = f"{need.path} is missing: `{need.brought_by}` brings it"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{words}; in CI everything that tests need has to be there", pytrace=False)
    pytest.skip(words)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            require(name)
