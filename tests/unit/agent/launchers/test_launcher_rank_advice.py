"""torchvision's error about a mismatched installation is reported with advice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import clary

SHIM = Path(clary.__file__).parent / "agent/launchers/shims/clary_rank.py"


@pytest.fixture
def end_of(tmp_path):
    """Run a program that raises a RuntimeError below the shim; return its output and the error that it recorded."""

    def run(message):
        (tmp_path / "train.py").write_text(f"raise RuntimeError({message!r})")
        errors = tmp_path / "errors"
        done = subprocess.run(
            [sys.executable, str(SHIM), "train.py"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "CLARY_ERRORS_FOLDER": str(errors)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        (record,) = errors.iterdir()
        return done.stderr, json.loads(record.read_text())["text"]

    return run


def test_a_torchvision_that_does_not_load_is_reported_with_the_version_to_install(end_of):
    said, left = end_of("operator torchvision::nms does not exist")
    assert said.count("clary: torchvision's compiled part does not load beside this torch") == 1
    assert "Traceback" in said
    assert left.startswith("RuntimeError: operator torchvision::nms does not exist (torchvision's compiled part")
    assert left.endswith("--index-url https://download.pytorch.org/whl/cpu)")


def test_other_errors_get_no_advice(end_of):
    said, left = end_of("operator mine::nms does not exist")
    assert "clary:" not in said
    assert left == "RuntimeError: operator mine::nms does not exist"
