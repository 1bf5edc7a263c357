"""Interpreters of other versions on this machine, for tests of the parts of Clary that run in jobs' programs."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest


@cache
def find_python(version: str) -> str | None:
    """Return an interpreter of this version, such as 3.10, from PATH or pyenv's folder; None if it is missing."""
    named = shutil.which(f"python{version}")
    kept = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python{version}"))
    for candidate in [*map(str, kept), *([named] if named else [])]:
        ask = [candidate, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def python(version: str) -> str:
    """Return an interpreter of this version; skip the test if it is missing."""
    found = find_python(version)
    if found is None:
        pytest.skip(f"there is no Python {version} on this machine: neither python{version} in PATH nor in ~/.pyenv")
    return found
