"""Makes the Python environments that the SDK's tests and their jobs run in, beside those of `make setup`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.sdk_tests.plan import Plan

_LIMIT_S = 900
_MNIST = Path(__file__).with_name("random_mnist.py")
_TEST_PACKAGES = ("pytest", "stopit", "awslogs", "filelock")
_MXNET_PACKAGES = ("mxnet==1.9.1", "numpy==1.23.5")  # the last MXNet; it needs a numpy that has np.bool


def make_client(plan: Plan, folder: Path) -> Path:
    """Return the interpreter of an environment that has the SDK's packages and those of its tests."""
    home = folder / f"sdk{plan.sdk}-tests"
    python = home / "bin/python"
    done = home / "made"
    if not done.exists():
        _run(str(plan.python), "-m", "venv", "--clear", str(home))
        (site,) = home.glob("lib/python3*/site-packages")
        (source,) = plan.python.parents[1].glob("lib/python3*/site-packages")
        (site / "sdk.pth").write_text(f"{source}\n", encoding="utf-8")
        _install(python, *_TEST_PACKAGES)
        done.touch()
    return python


def make_images(plan: Plan, folder: Path, other_python: str) -> None:
    """Make the environments that replace AWS's images: MXNet's, and one with another Python than the tests'."""
    mxnet = folder / "mxnet"
    if plan.sdk == 2 and not (mxnet / "made").exists():
        _run(sys.executable, "-m", "venv", "--clear", str(mxnet))
        _install(mxnet / "bin/python", *_MXNET_PACKAGES)
        (site,) = mxnet.glob("lib/python3*/site-packages")
        shutil.copy(_MNIST, site)
        (site / f"{_MNIST.stem}.pth").write_text(f"import {_MNIST.stem}\n", encoding="utf-8")
        (mxnet / "made").touch()
    other = folder / f"sdk{plan.sdk}-other"
    if other_python and not (other / "made").exists():
        _run(other_python, "-m", "venv", "--clear", str(other))
        _install(other / "bin/python", f"{plan.remote}=={version(plan.python, plan.remote)}")
        (other / "made").touch()


def version(python: Path, distribution: str) -> str:
    """Return the version of a distribution of an environment."""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return _run(str(python), "-c", code).strip()


def _install(python: Path, *packages: str) -> None:
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
